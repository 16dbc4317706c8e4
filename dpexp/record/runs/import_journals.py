"""Import: a journal from another machine joins the runs of this one."""

import os
import shutil
import tempfile
from pathlib import Path

from dpexp.config.process import command
from dpexp.record.files import make_folder, private_files, write_atomically
from dpexp.record.journal.fold import finish, fold
from dpexp.record.journal.journal import JOURNAL, RECORD, RUN_ID, is_open
from dpexp.record.profiler_trace import PROFILER_TRACE
from dpexp.record.record import JournalError

IMPORTED = "imported"
"""The empty file that marks a run of another machine: ``reproduce`` asks before it runs what that names."""


def journals(path: Path) -> list[Path]:
    """The journals at a path: a journal itself, that of a run's folder, or all in a folder of runs."""
    if not path.is_dir():
        return [path]
    journal = path / JOURNAL
    return [journal] if journal.exists() else sorted(path.glob(f"*/{JOURNAL}"))


def import_journal(journal: Path, runs: Path) -> Path:
    """Copy a journal into the folder of its run id in ``runs``; returns that folder.

    A longer copy of an existing journal replaces it. Raises JournalError for a file that is not a journal,
    and for two different journals of one run id.
    """
    run_id = fold(journal).run_id
    if not isinstance(run_id, str) or not RUN_ID.fullmatch(run_id):
        raise JournalError(
            f"{journal}: its run id {run_id!r} cannot be a folder's name: dpexp did not write it"
        )
    folder = runs / run_id
    if not folder.exists():
        _copy(journal, folder)
    elif not (folder / JOURNAL).exists():
        raise JournalError(
            f"{folder} has no {JOURNAL}: {command('runs')} remove {run_id} removes it, "
            f"then {journal} can be imported"
        )
    elif not journal.samefile(folder / JOURNAL):
        _merge(journal, folder)
    if not (folder / RECORD).exists() and not is_open(folder / JOURNAL):
        finish(folder / JOURNAL)
    return folder


def _copy(journal: Path, folder: Path) -> None:
    """Copy all of the run's files, or none: the folder appears when it is complete."""
    make_folder(folder.parent, exist_ok=True)
    with tempfile.TemporaryDirectory("", ".import-", folder.parent) as temporary, private_files():
        copied = Path(temporary) / folder.name
        copied.mkdir()
        (copied / IMPORTED).touch()
        shutil.copyfile(journal, copied / JOURNAL)
        _copy_trace(journal, copied)
        try:
            os.rename(copied, folder)
        except OSError:  # another process has imported it in the meantime
            _merge(journal, folder)


def _merge(journal: Path, folder: Path) -> None:
    present, imported = (folder / JOURNAL).read_bytes(), journal.read_bytes()
    if present.startswith(imported):
        return
    if not imported.startswith(present) or is_open(folder / JOURNAL):
        raise JournalError(
            f"{journal} and {folder / JOURNAL} are different journals of one run id: nothing was changed"
        )
    (folder / RECORD).unlink(missing_ok=True)
    write_atomically(folder / JOURNAL, imported)
    _copy_trace(journal, folder)


def _copy_trace(journal: Path, folder: Path) -> None:
    """Copy the profiler's trace, which no journal gives back."""
    if journal.with_name(PROFILER_TRACE).exists():
        shutil.copyfile(journal.with_name(PROFILER_TRACE), folder / PROFILER_TRACE)
