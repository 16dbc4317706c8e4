"""The recorded runs: list and show them, deliver them to MLflow, reproduce one, close dead ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpexp.commands import cli
from dpexp.commands.help_panels import OUTPUT, epilog
from dpexp.config.errors import ConfigError, no_file
from dpexp.config.process import command, home

if TYPE_CHECKING:
    from dpexp.tracking.delivery.sync import Result

app = cli.app("List and show recorded runs, deliver them to MLflow, and close those that died.")

Run = Annotated[str, typer.Argument(metavar="RUN", help="Run id, unique prefix of one, run name, or last.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.", rich_help_panel=OUTPUT)]


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

    A narrow terminal gets shorter ids and names, and fewer columns; --json has all.
    """
    from dpexp.record.runs.index import summaries
    from dpexp.report.render import run_list, terminal
    from dpexp.tracking.delivery.ledger import delivered

    runs = _runs()
    every = summaries(runs)
    known = every[:limit]
    delivery = delivered(home(), [summary.run_id for summary in known])
    for summary in known:
        if summary.problem:
            typer.echo(f"warning: run {summary.run_id} is skipped: {summary.problem}", err=True)
    if as_json:
        rows = [{**summary.to_dict(), "delivered": delivery[summary.run_id]} for summary in known]
        typer.echo(json.dumps(rows))
    elif known:
        ids = [summary.run_id for summary in every]
        listed = run_list.runs(known, delivery, width=terminal.terminal_width(piped=80), ids=ids)
        typer.echo(terminal.encodable(listed))
    else:
        typer.echo(f"no run yet in {runs}: {command('run')} hybrid makes one", err=True)


@app.command(epilog=epilog("runs show"))
def show(
    run: Run,
    as_json: Json = False,
    full: Annotated[
        bool, typer.Option("--full", help="Show the complete summary.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Show the summary of a run, or with --json its Record."""
    from dpexp.record.journal.fold import load
    from dpexp.tracking.delivery.ledger import delivered

    folder = _find(run)
    record = load(folder)
    if as_json:
        typer.echo(record.to_json(), nl=False)
        return
    from dpexp import report

    typer.echo(report.summary(record, full=full))
    typer.echo(f"delivered to MLflow: {delivered(home(), [folder.name])[folder.name]}")


@app.command(epilog=epilog("runs sync"))
def sync(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN|PATH", help="Runs, or paths of journals from other machines."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Deliver again what the store already has.")] = False,
) -> None:
    """Deliver runs to MLflow, without duplicates; without RUN all that are not delivered."""
    from dpexp.tracking.delivery import sync

    _runs()
    if not runs and not again:
        _deliver_lost()
    folders = [folder for name in runs for folder in _folders(name)] if runs else sync.undelivered(home())
    untracked = 0 if folders else len(sync.untracked(home()))
    note = f"; not delivered unless named: {untracked} with --no-track" if untracked else ""
    _deliver(folders, again, f"everything is delivered{note}", are_named=bool(runs))


@app.command(epilog=epilog("runs reap"))
def reap() -> None:
    """Close the runs whose process died: write their Record and end their MLflow run."""
    from dpexp.tracking.delivery import sync

    _runs()
    dead = sync.dead(home())
    closed = {folder: sync.close(folder) for folder in dead}
    for result in closed.values():
        if result.is_well:  # the delivery reports the others
            _print(result)
    readable = [folder for folder, result in closed.items() if result.state != sync.SKIPPED]
    _deliver(readable, False, "no dead run")


@app.command(epilog=epilog("runs reproduce"))
def reproduce(
    run: Annotated[
        str, typer.Argument(metavar="RUN|record.json", help="A recorded run, or the file of a Record.")
    ],
    exact: Annotated[
        bool, typer.Option("--exact", help="Run the recorded commit in a git worktree.")
    ] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run the code and read the files that a foreign Record names.")
    ] = False,
    repeats: Annotated[
        int,
        typer.Option(
            "--runs",
            help="How often it runs on the same kind of machine, to compare its times.",
            metavar="INTEGER",
            min=1,
        ),
    ] = 3,
) -> None:
    """Repeat a recorded run and compare: the exit code is 0 only if all required values are equal."""
    from dpexp.record.journal.fold import load
    from dpexp.report.render import terminal
    from dpexp.study.experiment.records import read_record
    from dpexp.study.reproduce import reproduce, reproduction

    path = Path(run).expanduser()
    if path.suffix == ".json" and not path.is_file():
        raise ConfigError(no_file(run))
    record = read_record(path) if path.is_file() else load(_find(run))
    result = reproduce.reproduce(record, exact=exact, trust=trust, warn=_warn, runs=repeats)
    typer.echo(terminal.text(reproduction.sections(result)))
    raise typer.Exit(cli.Exit.DONE if result.is_reproduced else cli.Exit.FAILED)


@app.command(epilog=epilog("runs check"))
def check(
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN", help="Default: all runs.")] = None,
    store: Annotated[
        bool, typer.Option("--store", help="Also compare with what MLflow holds, value by value.")
    ] = False,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Write again what derives from journals, deliver what MLflow lacks."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare journals, Records, summaries and ledgers of runs that have ended.

    The exit code is 1 if something is wrong and was not repaired, and 3 if MLflow cannot be asked.
    """
    from dpexp.record.runs import index
    from dpexp.tracking.delivery import sync
    from dpexp.tracking.errors import StoreError

    folders = list(map(_find, runs)) if runs else index.folders(_runs())
    rows, failure = [], ""
    try:
        for row in sync.checked(home(), folders, with_store=store, mend=repair):
            rows.append(row)
    except StoreError as error:
        failure = str(error)
    total = [] if failure else [f"{len(folders)} runs checked, {len(rows)} problems"]
    if as_json and (rows or not failure):
        typer.echo(json.dumps({"checked": len(folders), "problems": rows}))
    elif rows or total:
        typer.echo("\n".join([*map(_problem, rows), *total]))
    if failure:
        typer.echo(f"error: {failure}", err=True)
        raise typer.Exit(cli.Exit.NOT_DELIVERED)
    raise typer.Exit(cli.Exit.DONE if all(row["repaired"] for row in rows) else cli.Exit.FAILED)


def _problem(row: dict[str, Any]) -> str:
    todo = f"; --repair: {row['repair']}" if row["repair"] else "; cannot be repaired"
    return f"{row['run']}  {row['kind']}: {row['what']}{'; repaired' if row['repaired'] else todo}"


@app.command(epilog=epilog("runs remove"))
def remove(
    run: Run,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a run from this disk, after saying what it holds. What MLflow has of it stays."""
    from dpexp.record.runs.index import delete, read_summary
    from dpexp.report.render import run_list
    from dpexp.tracking.delivery.ledger import delivered

    folder = _find(run)
    summary = read_summary(folder)
    typer.echo(run_list.one(summary, delivered(home(), [folder.name])[folder.name]))
    if not yes and not typer.confirm("Delete it?"):
        raise typer.Exit(cli.Exit.FAILED)
    delete(folder)
    typer.echo(f"{folder.name}  removed")


def _warn(message: str) -> None:
    typer.echo(f"warning: {message}", err=True)


def _runs() -> Path:
    """The folder of the runs. Raises JournalError if DPEXP_HOME cannot be a directory."""
    from dpexp.record.journal.durable import check_home

    check_home(home())
    return home() / "runs"


def _deliver(folders: list[Path], again: bool, nothing: str, *, are_named: bool = False) -> None:
    from dpexp.tracking.delivery import sync
    from dpexp.tracking.errors import StoreError

    if not folders:
        typer.echo(nothing)
        return
    is_complete = True
    try:
        for result in sync.deliver(home(), folders, again=again):
            is_complete &= result.is_well and not (are_named and result.state == sync.SKIPPED)
            _print(result)
    except StoreError as error:
        typer.echo(f"error: {error}; the journals stay, and can be delivered later", err=True)
        is_complete = False
    raise typer.Exit(cli.Exit.DONE if is_complete else cli.Exit.NOT_DELIVERED)


def _deliver_lost() -> None:
    """Deliver into new MLflow runs what the store has lost since delivery; print each.

    Runs of a sweep that it has kept then get their new parent.
    """
    from dpexp.tracking.delivery import sync
    from dpexp.tracking.errors import StoreError

    try:
        lost = sync.lost(home())
        for result in sync.deliver(home(), lost, again=True, new_run=True):
            typer.echo(f"warning: run {result.run_id} was lost in the store", err=True)
            _print(result)
        for result in sync.deliver(home(), sync.runs_of(home(), lost), again=True):
            _print(result)
    except StoreError as error:
        typer.echo(f"warning: delivered runs were not checked: {error}", err=True)


def _folders(name: str) -> list[Path]:
    """The folder of a run; for a path, those of the journals in it, which are imported."""
    from dpexp.record.runs.import_journals import import_journal, journals

    path = Path(name).expanduser()
    if "/" not in name and not path.is_file():
        return [_find(name)]
    found = journals(path)
    if not found:
        raise ConfigError(f"no journal.jsonl in {path} and its folders")
    return [import_journal(journal, _runs()) for journal in found]


def _find(name: str) -> Path:
    from dpexp.record.runs.index import UnknownRunError, find

    try:
        return find(_runs(), name)
    except UnknownRunError as error:
        raise ConfigError(str(error)) from None


def _print(result: Result) -> None:
    """One line; on stderr where something is wrong."""
    from dpexp.tracking.delivery.sync import SKIPPED

    if result.state == SKIPPED:
        typer.echo(f"warning: run {result.run_id} is skipped: {result.message}", err=True)
        return
    message = f": {result.message}" if result.message else ""
    typer.echo(f"{result.run_id}  {result.state}{message}", err=not result.is_well)
