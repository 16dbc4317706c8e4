"""The recorded runs: list and show them, deliver them to MLflow, reproduce or remove one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dpexp import report
from dpexp.commands.app import Exit, make_app, say, show_report
from dpexp.commands.options import OUTPUT, examples
from dpexp.config.errors import ConfigError
from dpexp.config.printable import printable_line
from dpexp.config.process import command, home
from dpexp.config.words import no_file
from dpexp.record.files import check_home
from dpexp.record.fold import load_record
from dpexp.record.runs import RunSummary, delete_run, find, import_journal, journals, summaries
from dpexp.report import listing, terminal
from dpexp.tracking.ledger import delivered
from dpexp.tracking.store import StoreError
from dpexp.tracking.sync import NOT_TRACKED, SKIPPED, SyncResult
from dpexp.tracking.sync import sync as deliver

app = make_app("List and show recorded runs, deliver them to MLflow, reproduce or remove one.")

_Run = Annotated[str, typer.Argument(metavar="RUN", help="Run id, unique prefix of one, run name, or last.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.", rich_help_panel=OUTPUT)]


def runs_folder() -> Path:
    """The folder of the runs. Raises JournalError if DPEXP_HOME cannot be a directory."""
    check_home(home())
    return home() / "runs"


def find_run(name: str) -> Path:
    """The folder of a run. Raises ConfigError for a name of none, or of several."""
    return find(runs_folder(), name)


@app.command("list", epilog=examples("runs", "list", "list --json"))
def list_(as_json: Json = False) -> None:
    """List all runs, the newest first."""
    runs = runs_folder()
    known = summaries(runs)
    states = delivered(home(), [summary.run_id for summary in known])
    for summary in known:
        if summary.problem:
            _warn(f"run {summary.run_id} is skipped: {summary.problem}")
    if as_json:
        rows = [{**summary.to_dict(), "delivered": states[summary.run_id]} for summary in known]
        say(json.dumps(rows))
    elif known:
        say(listing.runs(known, states))
    else:
        say(f"no run yet in {runs}: {command('run')} hybrid makes one", err=True)


@app.command("show", epilog=examples("runs", "show last", "show last --full"))
def show(
    run: _Run,
    as_json: Json = False,
    full: Annotated[
        bool, typer.Option("--full", help="Show the complete summary.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Show the summary of a run, or with --json its Record."""
    folder = find_run(run)
    record = load_record(folder)
    if as_json:
        say(record.to_json(), nl=False)
        return
    show_report(report.summary(record, full=full))
    say(f"delivered to MLflow: {delivered(home(), [folder.name])[folder.name]}")


@app.command("sync", epilog=examples("runs", "sync", "sync last"))
def sync(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN|PATH", help="Runs, or paths of journals from other machines."),
    ] = None,
) -> None:
    """Deliver runs to MLflow, without duplicates; without RUN all that it lacks.

    A run whose process died is closed first: its Record is written, and it ends in MLflow.
    """
    runs_folder()
    folders = [folder for name in runs for folder in _folders(name)] if runs else None
    is_complete, untracked, nothing = True, 0, True
    try:
        for result in deliver(home(), folders, again=bool(runs)):
            if result.state == NOT_TRACKED:
                untracked += 1
                continue
            nothing = False
            is_complete &= result.is_well and not (runs and result.state == SKIPPED)
            _print(result)
    except StoreError as error:
        say(f"error: {error}; the journals stay, and can be delivered later", err=True)
        raise typer.Exit(Exit.NOT_DELIVERED) from None
    if nothing:
        note = f"; not delivered unless named: {untracked} with --no-track" if untracked else ""
        say(f"everything is delivered{note}")
    raise typer.Exit(Exit.DONE if is_complete else Exit.NOT_DELIVERED)


def _folders(name: str) -> list[Path]:
    """The folder of a run; for a path, those of the journals in it, which are imported."""
    path = Path(name).expanduser()
    if "/" not in name and not path.is_file():
        return [find_run(name)]
    found = journals(path)
    if not found:
        raise ConfigError(f"no journal.jsonl in {path} and its folders")
    return [import_journal(journal, runs_folder()) for journal in found]


def _print(result: SyncResult) -> None:
    if result.state == SKIPPED:
        _warn(f"run {result.run_id} is skipped: {result.message}")
        return
    message = printable_line(f": {result.message}" if result.message else "")
    say(f"{result.run_id}  {result.state}{message}", err=not result.is_well)


@app.command("reproduce", epilog=examples("runs", "reproduce last", "reproduce record.json"))
def reproduce(
    run: Annotated[
        str, typer.Argument(metavar="RUN|record.json", help="A recorded run, or the file of a Record.")
    ],
) -> None:
    """Repeat a recorded run and compare: the exit code is 0 only if all required values are equal.

    This runs the code that the Record names.
    """
    from dpexp.study import reproduce  # imports torch

    path = Path(run).expanduser()
    if path.suffix == ".json" and not path.is_file():
        raise ConfigError(no_file(run))
    record = load_record(path if path.is_file() else find_run(run))
    reproduction = reproduce.reproduce(record, _warn)
    show_report(terminal.terminal_text(reproduction.sections()))
    raise typer.Exit(Exit.DONE if reproduction.is_reproduced else Exit.FAILED)


def _warn(message: str) -> None:
    say(f"warning: {message}", err=True)


@app.command("remove", epilog=examples("runs", "remove last", "remove last --yes"))
def remove(
    run: _Run,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a run from this disk, after saying what it holds. What MLflow has of it stays."""
    folder = find_run(run)
    summary = RunSummary.read(folder)
    say(listing.one(summary, delivered(home(), [folder.name])[folder.name]))
    if not yes and not typer.confirm("Delete it?"):
        raise typer.Exit(Exit.FAILED)
    delete_run(folder)
    say(f"{folder.name}  removed")
