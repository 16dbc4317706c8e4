"""Adopting: a journal that was brought from another machine joins the runs of this one."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from dpexp.record.durable import write_atomically
from dpexp.record.fold import finish, fold
from dpexp.record.journal import JOURNAL, RECORD, RUN_ID, is_open
from dpexp.record.record import JournalError
from dpexp.record.summary import SUMMARY

BESIDE = ("system.jsonl",)
"""What else of a run is copied, where it is there."""


def journals(path: Path) -> list[Path]:
    """The journals at a path: of a file itself, of a run's folder one, of a folder of runs all of them."""
    if path.is_dir():
        own = path / JOURNAL
        return [own] if own.exists() else sorted(path.glob(f"*/{JOURNAL}"))
    return [path]


def import_journal(journal: Path, runs: Path) -> Path:
    """Copy a journal to where its run id puts it in ``runs``; returns the run's folder.

    A longer copy of a journal that is here replaces it. Raises JournalError for what is no journal, and
    for two different journals of one run id.
    """
    run_id = fold(journal).run_id
    if not isinstance(run_id, str) or not RUN_ID.fullmatch(run_id):
        raise JournalError(f"{journal}: its run id {run_id!r} can be no folder's name: not written by dpexp")
    folder = runs / run_id
    if not folder.exists():
        _copy(journal, folder)
    elif not journal.samefile(folder / JOURNAL):
        _merge(journal, folder)
    if not (folder / RECORD).exists() and not is_open(folder / JOURNAL):
        finish(folder / JOURNAL)
    return folder


def _copy(journal: Path, folder: Path) -> None:
    """All of the run's files, or none: the folder appears when it is whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".adopt-", dir=folder.parent) as scratch:
        whole = Path(scratch) / folder.name
        whole.mkdir()
        shutil.copyfile(journal, whole / JOURNAL)
        for name in BESIDE:
            if journal.with_name(name).exists():
                shutil.copyfile(journal.with_name(name), whole / name)
        try:
            os.rename(whole, folder)
        except OSError:  # another process adopts it too, and was first
            _merge(journal, folder)


def _merge(journal: Path, folder: Path) -> None:
    here, there = (folder / JOURNAL).read_bytes(), journal.read_bytes()
    if here.startswith(there):
        return
    if not there.startswith(here) or is_open(folder / JOURNAL):
        raise JournalError(
            f"{journal} and {folder / JOURNAL} are different journals of one run id: nothing was changed"
        )
    write_atomically(folder / JOURNAL, there)
    for stale in (RECORD, SUMMARY):
        (folder / stale).unlink(missing_ok=True)
    for name in BESIDE:
        if journal.with_name(name).exists():
            write_atomically(folder / name, journal.with_name(name).read_bytes())
