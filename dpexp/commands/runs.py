"""The recorded runs: list and show them, deliver them to MLflow, reproduce or remove one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from dpexp.commands import delivery
from dpexp.commands.command_line.app import Exit, make_app
from dpexp.commands.command_line.help_panels import OUTPUT, epilog
from dpexp.commands.command_line.output import say, show_report
from dpexp.commands.delivery import Json, find_run, runs_folder
from dpexp.config.errors import ConfigError, no_file
from dpexp.config.process import command, home
from dpexp.study import MOST_REPEATS

app = make_app("List and show recorded runs, deliver them to MLflow, reproduce or remove one.")

_Run = Annotated[str, typer.Argument(metavar="RUN", help="Run id, unique prefix of one, run name, or last.")]


@app.command("list", epilog=epilog("runs list"))
def list_(
    as_json: Json = False,
    limit: Annotated[
        int,
        typer.Option(
            "--limit",
            "-n",
            metavar="INTEGER",
            min=1,
            show_default=False,
            help="Number of runs, the newest first. Default: all.",
        ),
    ] = sys.maxsize,
) -> None:
    """List all runs, the newest first.

    A narrow terminal gets fewer columns, then shorter ids; where the output is piped, nothing is cut.
    """
    from dpexp.record.runs import summaries
    from dpexp.report import listing, terminal
    from dpexp.tracking.ledger import delivered

    runs = runs_folder()
    every = summaries(runs)
    known = every[:limit]
    states = delivered(home(), [summary.run_id for summary in known])
    for summary in known:
        if summary.problem:
            say(f"warning: run {summary.run_id} is skipped: {summary.problem}", err=True)
    if as_json:
        rows = [{**summary.to_dict(), "delivered": states[summary.run_id]} for summary in known]
        say(json.dumps(rows))
    elif known:
        ids = [summary.run_id for summary in every]
        say(listing.runs(known, states, width=terminal.terminal_width(), ids=ids))
    else:
        say(f"no run yet in {runs}: {command('run')} hybrid makes one", err=True)


@app.command(epilog=epilog("runs show"))
def show(
    run: _Run,
    as_json: Json = False,
    full: Annotated[
        bool, typer.Option("--full", help="Show the complete summary.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Show the summary of a run, or with --json its Record."""
    from dpexp.record.record import Record
    from dpexp.tracking.ledger import delivered

    folder = find_run(run)
    record = Record.load(folder)
    if as_json:
        say(record.to_json(), nl=False)
        return
    from dpexp import report

    show_report(report.summary(record, full=full))
    say(f"delivered to MLflow: {delivered(home(), [folder.name])[folder.name]}")


app.command(epilog=epilog("runs sync"))(delivery.sync)


@app.command(epilog=epilog("runs reproduce"))
def reproduce(
    run: Annotated[
        str, typer.Argument(metavar="RUN|record.json", help="A recorded run, or the file of a Record.")
    ],
    exact: Annotated[
        bool, typer.Option("--exact", help="Run the recorded commit in a git worktree.")
    ] = False,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Run the code and read the files that a Record from elsewhere names."),
    ] = False,
    repeats: Annotated[
        int,
        typer.Option(
            "--runs",
            help="How often it runs on the same kind of machine, to compare its times.",
            metavar="INTEGER",
            min=1,
            max=MOST_REPEATS,
        ),
    ] = 3,
    track: Annotated[
        bool,
        typer.Option(
            "--track/--no-track",
            help="Deliver what it runs to MLflow, if the run was tracked.",
            envvar="DPEXP_TRACK",
        ),
    ] = True,
) -> None:
    """Repeat a recorded run and compare: the exit code is 0 only if all required values are equal."""
    from dpexp.record.record import Record
    from dpexp.report import terminal
    from dpexp.study.reproduce import named_files, reproduce, reproduction

    path = Path(run).expanduser()
    if path.suffix == ".json" and not path.is_file():
        raise ConfigError(no_file(run))
    folder = path.parent if path.is_file() else find_run(run)
    record = Record.load(path if path.is_file() else folder)
    is_trusted = trust or not named_files.is_foreign(folder)

    def warn(message: str) -> None:
        say(f"warning: {message}", err=True)

    result = reproduce.reproduce(record, exact=exact, trust=is_trusted, warn=warn, runs=repeats, track=track)
    show_report(terminal.terminal_text(reproduction.reproduction_sections(result)))
    raise typer.Exit(Exit.DONE if result.is_reproduced else Exit.FAILED)


@app.command(epilog=epilog("runs remove"))
def remove(
    run: _Run,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a run from this disk, after saying what it holds. What MLflow has of it stays."""
    from dpexp.record.runs import RunSummary, delete_run
    from dpexp.report import listing
    from dpexp.tracking.ledger import delivered

    folder = find_run(run)
    summary = RunSummary.read(folder)
    say(listing.one(summary, delivered(home(), [folder.name])[folder.name]))
    if not yes and not typer.confirm("Delete it?"):
        raise typer.Exit(Exit.FAILED)
    delete_run(folder)
    say(f"{folder.name}  removed")
