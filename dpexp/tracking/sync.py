"""Sync: deliver later what was not delivered, and close what died. Called by ``scripts/runs.py``."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dpexp.record import JOURNAL, RECORD, JournalError, finish, folders, is_open, load
from dpexp.tracking import ledger
from dpexp.tracking.errors import StoreError
from dpexp.tracking.store import Store, describe
from dpexp.tracking.upload import Upload

LOCK_WAIT_S = 60.0


@dataclass(frozen=True)
class Result:
    """What became of one run: ``delivered``, ``already``, ``running``, ``closed`` or ``not delivered``."""

    run_id: str
    state: str
    message: str = ""

    @property
    def is_well(self) -> bool:
        """Whether nothing is left to do for this run now."""
        return self.state in ("delivered", "already", "running", "closed")


def undelivered(home: Path) -> list[Path]:
    """The runs that are to be tracked and are not complete in this environment's store."""
    return [folder for folder in _incomplete(home) if _is_tracked(folder)]


def untracked(home: Path) -> list[Path]:
    """The runs with ``--no-track`` that this environment's store does not have: delivered when named."""
    known = (folder for folder in _incomplete(home) if (folder / JOURNAL).exists())
    return [folder for folder in known if not _is_tracked(folder)]


def _incomplete(home: Path) -> list[Path]:
    store = Store.of(home).name
    return [folder for folder in folders(home / "runs") if not ledger.is_complete(folder, store)]


def dead(home: Path) -> list[Path]:
    """The runs whose process ended without saying so, and those that a store still believes to go on."""
    store = Store.of(home).name
    return [f for f in folders(home / "runs") if _is_over(f) and (_is_unclosed(f) or _is_begun(f, store))]


def deliver(home: Path, runs: Iterable[Path], *, again: bool = False) -> Iterator[Result]:
    """Deliver each run of these folders; ``again`` also those that the ledger calls complete.

    Raises StoreError when the store cannot be opened.
    """
    store = Store.of(home)
    for folder in runs:
        if not again and ledger.is_complete(folder, store.name):
            yield Result(folder.name, "already")
        elif not _is_over(folder):
            yield Result(folder.name, "running", "its own uploader delivers it")
        else:
            store.open()
            yield _deliver(store, folder, again)


def close(folder: Path) -> Result:
    """Write the Record of a run whose process is gone; stores are told by ``deliver``."""
    record = finish(folder / JOURNAL)
    return Result(folder.name, "closed", f"{record.status}, {len(record.steps['time_ms'])} steps recorded")


def _deliver(store: Store, folder: Path, again: bool) -> Result:
    try:
        with ledger.delivering(folder, LOCK_WAIT_S):
            if not again and ledger.is_complete(folder, store.name):
                return Result(folder.name, "already")
            return Result(folder.name, "delivered", Upload(store, folder / JOURNAL).complete().message)
    except (ledger.Busy, StoreError, JournalError) as error:
        return Result(folder.name, "not delivered", str(error))
    except Exception as error:  # any store, any driver
        with open(folder / "uploader.log", "a") as log:
            traceback.print_exc(file=log)
        return Result(folder.name, "not delivered", describe(error))


def _is_over(folder: Path) -> bool:
    journal = folder / JOURNAL
    return journal.exists() and not is_open(journal)


def _is_unclosed(folder: Path) -> bool:
    return not (folder / RECORD).exists()


def _is_begun(folder: Path, store: str) -> bool:
    return store in ledger.read(folder) and not ledger.is_complete(folder, store)


def _is_tracked(folder: Path) -> bool:
    """False for runs with ``--no-track``; one that can't be read is to be looked at, and named."""
    try:
        return bool(load(folder).config.get("track", True))
    except JournalError:
        return (folder / JOURNAL).exists()
