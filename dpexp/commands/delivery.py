"""Commands of ``runs`` that compare runs with MLflow and deliver them: ``sync``, ``reap`` and ``check``."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpexp.commands.command_line.app import Exit
from dpexp.commands.command_line.help_panels import OUTPUT
from dpexp.commands.command_line.output import say
from dpexp.config.errors import ConfigError
from dpexp.config.printable import printable_line
from dpexp.config.process import home, without_garbage_collection
from dpexp.config.ranges import plural

if TYPE_CHECKING:
    from dpexp.tracking.delivery.sync import DeliveryResult

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.", rich_help_panel=OUTPUT)]


def runs_folder() -> Path:
    """The folder of the runs. Raises JournalError if DPEXP_HOME cannot be a directory."""
    from dpexp.record.journal.durable import check_home

    check_home(home())
    return home() / "runs"


def find_run(name: str) -> Path:
    """The folder of a run. Raises ConfigError for a name of none, or of several."""
    from dpexp.record.runs.index import find

    return find(runs_folder(), name)


def sync(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN|PATH", help="Runs, or paths of journals from other machines."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Deliver again what the store already has.")] = False,
) -> None:
    """Deliver runs to MLflow, without duplicates; without RUN all that are not delivered."""
    from dpexp.tracking.delivery import sync

    runs_folder()
    if not runs and not again:
        _deliver_lost()
    folders = [folder for name in runs for folder in _folders(name)] if runs else sync.undelivered(home())
    untracked = 0 if folders else len(sync.untracked(home()))
    note = f"; not delivered unless named: {untracked} with --no-track" if untracked else ""
    _deliver(folders, f"everything is delivered{note}", again=again, are_named=bool(runs))


def reap() -> None:
    """Close the runs whose process died: write their Record and end their MLflow run.

    What killed processes left beside journals, among the runs, and in the temporary directory,
    is removed.
    """
    from dpexp.record.journal.leftovers import remove_leftovers
    from dpexp.record.journal.temporary_folder import remove_dead_folders
    from dpexp.record.runs import index
    from dpexp.tracking.delivery import sync

    remove_dead_folders()
    remove_dead_folders(runs_folder())
    for folder in index.folders(runs_folder()):
        remove_leftovers(folder)
    dead = sync.dead(home())
    closed = {folder: sync.close(folder) for folder in dead}
    for result in closed.values():
        if result.is_well:  # the delivery reports the others
            _print(result)
    readable = [folder for folder, result in closed.items() if result.state != sync.SKIPPED]
    _deliver(readable, "no dead run")


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
    from dpexp.tracking.delivery.repair import checked
    from dpexp.tracking.errors import StoreError

    folders = list(map(find_run, runs)) if runs else index.folders(runs_folder())
    rows, failure = [], ""
    try:
        for row in checked(home(), folders, with_store=store, mend=repair):
            rows.append(row)
    except StoreError as error:
        failure = str(error)
    total = [] if failure else [f"{plural(len(folders), 'run')} checked, {plural(len(rows), 'problem')}"]
    if as_json and (rows or not failure):
        say(json.dumps({"checked": len(folders), "problems": rows}))
    elif rows or total:
        say("\n".join([*map(_problem, rows), *total]))
    if failure:
        say(f"error: {failure}", err=True)
        raise typer.Exit(Exit.NOT_DELIVERED)
    raise typer.Exit(Exit.DONE if all(row["repaired"] for row in rows) else Exit.FAILED)


def _problem(row: dict[str, Any]) -> str:
    todo = f"; --repair: {row['repair']}" if row["repair"] else "; cannot be repaired"
    text = f"{row['run']}  {row['kind']}: {row['what']}{'; repaired' if row['repaired'] else todo}"
    return printable_line(text)


def _deliver(folders: list[Path], nothing: str, *, again: bool = False, are_named: bool = False) -> None:
    from dpexp.tracking.delivery import sync
    from dpexp.tracking.errors import StoreError

    if not folders:
        say(nothing)
        return
    is_complete = True
    gc.freeze()  # what is imported and known by now stays: no search for garbage visits it
    try:
        for result in sync.deliver(home(), folders, again=again, named=are_named):
            is_complete &= result.is_well and not (are_named and result.state == sync.SKIPPED)
            _print(result)
    except StoreError as error:
        say(f"error: {error}; the journals stay, and can be delivered later", err=True)
        is_complete = False
    raise typer.Exit(Exit.DONE if is_complete else Exit.NOT_DELIVERED)


def _deliver_lost() -> None:
    """Deliver into new MLflow runs what the store has lost since delivery; print each.

    Runs of a sweep that it has kept then get their new parent.
    """
    from dpexp.tracking.delivery import sync
    from dpexp.tracking.errors import LateServerError, StoreError

    try:
        with without_garbage_collection():
            lost = sync.lost(home())
        for result in sync.deliver(home(), lost, again=True, new_run=True):
            say(f"warning: run {result.run_id} was lost in the store", err=True)
            _print(result)
        for result in sync.deliver(home(), sync.runs_of(home(), lost), again=True):
            _print(result)
    except LateServerError as error:
        say(f"error: {error}; the journals stay, and can be delivered later", err=True)
        raise typer.Exit(Exit.NOT_DELIVERED) from None
    except StoreError as error:
        say(f"warning: delivered runs were not checked: {error}", err=True)


def _folders(name: str) -> list[Path]:
    """The folder of a run; for a path, those of the journals in it, which are imported."""
    from dpexp.record.runs.import_journals import import_journal, journals

    path = Path(name).expanduser()
    if "/" not in name and not path.is_file():
        return [find_run(name)]
    found = journals(path)
    if not found:
        raise ConfigError(f"no journal.jsonl in {path} and its folders")
    return [import_journal(journal, runs_folder()) for journal in found]


def _print(result: DeliveryResult) -> None:
    """One line; on stderr where something is wrong."""
    from dpexp.tracking.delivery.sync import SKIPPED

    if result.state == SKIPPED:
        say(f"warning: run {result.run_id} is skipped: {result.message}", err=True)
        return
    message = printable_line(f": {result.message}" if result.message else "")
    say(f"{result.run_id}  {result.state}{message}", err=not result.is_well)
