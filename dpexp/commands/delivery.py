"""``runs sync``: deliver runs to MLflow, and close those whose process died."""

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
    from dpexp.tracking.sync import SyncResult

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
) -> None:
    """Deliver runs to MLflow, without duplicates; without RUN all that it lacks.

    A run whose process died is closed first: its Record is written, and it ends in MLflow.
    """
    from dpexp.tracking.store import StoreError
    from dpexp.tracking.sync import NOT_TRACKED, SKIPPED
    from dpexp.tracking.sync import sync as deliver

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
    from dpexp.record.runs import import_journal, journals

    path = Path(name).expanduser()
    if "/" not in name and not path.is_file():
        return [find_run(name)]
    found = journals(path)
    if not found:
        raise ConfigError(f"no journal.jsonl in {path} and its folders")
    return [import_journal(journal, runs_folder()) for journal in found]


def _print(result: SyncResult) -> None:
    """One line; on stderr where something is wrong."""
    from dpexp.tracking.sync import SKIPPED

    if result.state == SKIPPED:
        say(f"warning: run {result.run_id} is skipped: {result.message}", err=True)
        return
    message = printable_line(f": {result.message}" if result.message else "")
    say(f"{result.run_id}  {result.state}{message}", err=not result.is_well)
