"""Sync: delivers runs later, and closes runs whose process died. ``scripts/runs.py`` calls it."""

import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dpexp.record import (
    JOURNAL,
    RECORD,
    JournalError,
    finish,
    folders,
    is_open,
    load,
    present,
    private_files,
    redact,
)
from dpexp.tracking import ledger
from dpexp.tracking.errors import StoreError, short_message
from dpexp.tracking.ledger import DeliveryLockedError
from dpexp.tracking.store import Store
from dpexp.tracking.upload import LOG, Upload

DELIVERY_LOCK_TIMEOUT_S = 60.0
SKIPPED = "skipped"


@dataclass(frozen=True)
class Result:
    """One run's state: ``delivered``, ``already``, ``running``, ``closed``, ``skipped`` or ``not delivered``.

    A run is skipped that nothing can deliver: its journal is empty, or dpexp did not write it.
    """

    run_id: str
    state: str
    message: str = ""

    @property
    def is_well(self) -> bool:
        """Whether this run needs nothing more now."""
        return self.state != "not delivered"


def undelivered(home: Path) -> list[Path]:
    """The runs with tracking that are not complete in this environment's store."""
    return [folder for folder in _incomplete(home) if _is_tracked(folder)]


def untracked(home: Path) -> list[Path]:
    """The runs with ``--no-track`` that this environment's store does not have: delivered when named."""
    with_journal = (folder for folder in _incomplete(home) if (folder / JOURNAL).exists())
    return [folder for folder in with_journal if not _is_tracked(folder)]


def _incomplete(home: Path) -> list[Path]:
    store = Store.from_environment(home).name
    return [folder for folder in folders(home / "runs") if not ledger.is_complete(folder, store)]


def dead(home: Path) -> list[Path]:
    """The runs whose process died: without a Record, or perhaps still running in the store."""
    store = Store.from_environment(home).name
    ended = [folder for folder in folders(home / "runs") if _has_ended(folder)]
    return [folder for folder in ended if not (folder / RECORD).exists() or _is_partial(folder, store)]


def deliver(home: Path, runs: Iterable[Path], *, again: bool = False) -> Iterator[Result]:
    """Deliver runs; with ``again`` also complete ones. Raises StoreError when the store cannot be opened."""
    store = Store.from_environment(home)
    for folder in runs:
        if not again and ledger.is_complete(folder, store.name):
            yield Result(folder.name, "already")
        elif not _has_ended(folder):
            yield Result(folder.name, "running", "its own uploader delivers it")
        else:
            try:
                load(folder)
            except JournalError as error:
                yield Result(folder.name, SKIPPED, str(error))
                continue
            with private_files():
                store.open()
                result = _deliver(store, folder, again)
            yield result


def close(folder: Path) -> Result:
    """Write the Record of a run whose process died; ``deliver`` then ends it in the store."""
    try:
        record = finish(folder / JOURNAL)
    except JournalError as error:
        return Result(folder.name, SKIPPED, str(error))
    steps = len(present(record.steps["time_ms"]))
    return Result(folder.name, "closed", f"{record.status}, {steps} steps recorded")


def _deliver(store: Store, folder: Path, again: bool) -> Result:
    try:
        with ledger.delivery_lock(folder, DELIVERY_LOCK_TIMEOUT_S):
            if not again and ledger.is_complete(folder, store.name):
                return Result(folder.name, "already")
            return Result(folder.name, "delivered", Upload(store, folder / JOURNAL).complete().message)
    except (DeliveryLockedError, StoreError, JournalError) as error:
        return Result(folder.name, "not delivered", str(error))
    except Exception as error:  # any store, any driver
        with open(folder / LOG, "a") as log:
            log.write(redact(traceback.format_exc()))
        return Result(folder.name, "not delivered", short_message(error))


def _has_ended(folder: Path) -> bool:
    journal = folder / JOURNAL
    return journal.exists() and not is_open(journal)


def _is_partial(folder: Path, store: str) -> bool:
    return store in ledger.read(folder) and not ledger.is_complete(folder, store)


def _is_tracked(folder: Path) -> bool:
    """False for runs with ``--no-track``; True for a journal that cannot be read, so that it is reported."""
    try:
        return bool(load(folder).config.get("track", True))
    except JournalError:
        return (folder / JOURNAL).exists()
