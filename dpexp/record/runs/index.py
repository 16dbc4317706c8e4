"""The index of runs: which runs exist, and which of them an argument of the command line names.

Arguments are only compared with existing names; none becomes part of a path.
"""

import dataclasses
import difflib
import os
import shutil
from pathlib import Path

from dpexp.config.errors import ConfigError, describe
from dpexp.config.process import command
from dpexp.record.journal.fold import load
from dpexp.record.journal.journal import JOURNAL, is_open
from dpexp.record.record import JournalError, Record
from dpexp.record.runs.run_summary import RunSummary

UNREADABLE = "unreadable"
LAST = "last"


class UnknownRunError(ConfigError):
    """A name of no run, or of several: the message lists similar ones."""


def folders(runs: Path) -> list[Path]:
    """The folders of all runs, by run id; none before the first. Raises JournalError without permission."""
    try:
        with os.scandir(runs) as found:
            paths = sorted(e.path for e in found if not e.name.startswith(".") and e.is_dir())
    except FileNotFoundError:
        return []
    except PermissionError as error:
        raise JournalError(
            f"{runs} cannot be read: {error.strerror}; DPEXP_HOME is the folder of the runs"
        ) from error
    return list(map(Path, paths))


def read_summary(folder: Path) -> RunSummary:
    """The summary of one run. One that cannot be read is ``unreadable``, and ``problem`` says why."""
    try:
        summary = RunSummary.of(load(folder))
    except Exception as error:  # whatever is in the files: other runs are listed
        problem = str(error) if isinstance(error, JournalError) else describe(error)
        summary = dataclasses.replace(RunSummary.of(Record(status=UNREADABLE)), problem=problem)
    return dataclasses.replace(summary, run_id=folder.name)


def summaries(runs: Path) -> list[RunSummary]:
    """The summaries of all runs, the newest first."""
    return sorted(map(read_summary, folders(runs)), key=lambda run: (run.started, run.run_id), reverse=True)


def delete_run(folder: Path) -> None:
    """Delete a run's folder; an interrupted deletion leaves a hidden one, which the next one deletes.

    Raises JournalError.
    """
    hidden = folder.with_name(f".removed-{folder.name}")
    try:
        if (folder / JOURNAL).is_file() and is_open(folder / JOURNAL):
            raise JournalError(f"run {folder.name} is running: end it first; nothing was deleted")
        if hidden.exists():
            shutil.rmtree(hidden)
        folder.rename(hidden)
        shutil.rmtree(hidden)
    except OSError as error:
        raise JournalError(f"run {folder.name} cannot be deleted: {error}") from error


def find(runs: Path, name: str) -> Path:
    """The folder of a run, by its id, a unique prefix of it, its name, or ``last``.

    Of several runs with one name it is the newest. Raises UnknownRunError.
    """
    by_id = {folder.name: folder for folder in folders(runs)}
    if not by_id:
        raise UnknownRunError(f"there is no run in {runs} yet")
    if name in by_id:
        return by_id[name]
    matches = [run_id for run_id in by_id if name and run_id.startswith(name)]
    if len(matches) == 1:
        return by_id[matches[0]]
    known = summaries(runs)
    for run in known:
        if name == LAST or (run.name == name and run.status != UNREADABLE):
            return by_id[run.run_id]
    if matches:
        shown = ", ".join(matches[:5]) + (", …" if len(matches) > 5 else "")
        raise UnknownRunError(f"'{name}' begins {len(matches)} run ids ({shown}): use a longer prefix")
    close = difflib.get_close_matches(name, [*by_id, *(run.name for run in known)], n=1)
    suggestion = f": did you mean '{close[0]}'?" if close else ""
    raise UnknownRunError(
        f"no run '{name}' among the {len(by_id)} in {runs}, which {command('runs')} list shows{suggestion}"
    )
