"""Commands of ``runs`` that deliver runs to MLflow: ``sync`` and ``reap``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpexp.commands.command_line.app import Exit
from dpexp.commands.command_line.help_panels import OUTPUT
from dpexp.commands.command_line.output import say
from dpexp.config.errors import ConfigError
from dpexp.config.printable import printable_line
from dpexp.config.process import home

if TYPE_CHECKING:
    from dpexp.tracking.delivery.sync import DeliveryResult

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.", rich_help_panel=OUTPUT)]


def runs_folder() -> Path:
    """The folder of the runs. Raises JournalError if DPEXP_HOME cannot be a directory."""
    from dpexp.record.files import check_home

    check_home(home())
    return home() / "runs"


def find_run(name: str) -> Path:
    """The folder of a run. Raises ConfigError for a name of none, or of several."""
    from dpexp.record.runs import find

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
    folders = [folder for name in runs for folder in _folders(name)] if runs else sync.undelivered(home())
    if not runs and not again:
        _deliver_lost()
    untracked = 0 if folders else len(sync.untracked(home()))
    note = f"; not delivered unless named: {untracked} with --no-track" if untracked else ""
    _deliver(folders, f"everything is delivered{note}", again=again, are_named=bool(runs))


def reap() -> None:
    """Close the runs whose process died: write their Record and end their MLflow run."""
    from dpexp.tracking.delivery import sync

    runs_folder()
    dead = sync.dead(home())
    closed = {folder: sync.close(folder) for folder in dead}
    for result in closed.values():
        if result.is_well:  # the delivery reports the others
            _print(result)
    readable = [folder for folder, result in closed.items() if result.state != sync.SKIPPED]
    _deliver(readable, "no dead run")


def _deliver(folders: list[Path], nothing: str, *, again: bool = False, are_named: bool = False) -> None:
    from dpexp.tracking.delivery import sync
    from dpexp.tracking.errors import StoreError

    if not folders:
        say(nothing)
        return
    is_complete = True
    try:
        for result in sync.deliver(home(), folders, again=again, named=are_named):
            is_complete &= result.is_well and not (are_named and result.state == sync.SKIPPED)
            _print(result)
    except StoreError as error:
        say(f"error: {error}; the journals stay, and can be delivered later", err=True)
        is_complete = False
    raise typer.Exit(Exit.DONE if is_complete else Exit.NOT_DELIVERED)


def _deliver_lost() -> None:
    """Deliver again what the store has lost since delivery; print each."""
    from dpexp.tracking.delivery import sync
    from dpexp.tracking.errors import StoreError

    try:
        for result in sync.deliver(home(), sync.lost(home()), again=True):
            say(f"warning: run {result.run_id} was lost in the store", err=True)
            _print(result)
    except StoreError as error:
        say(f"warning: delivered runs were not checked: {error}", err=True)


def _folders(name: str) -> list[Path]:
    """The folder of a run; for a path, those of the journals in it, which are imported."""
    from dpexp.record.runs import import_journal, journals

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
