"""Sync: delivers runs later, and closes runs whose process died. ``scripts/runs.py`` calls it."""

import contextlib
import os
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dpexp.config.ranges import plural
from dpexp.record.files import JournalError, private_files
from dpexp.record.journal import JOURNAL, RECORD, is_open
from dpexp.record.record import Record, finish
from dpexp.record.redact import redact
from dpexp.record.runs import folders
from dpexp.record.steps import present
from dpexp.tracking.delivery import ledger
from dpexp.tracking.delivery.ledger import DeliveryLockedError
from dpexp.tracking.delivery.upload import LOG, Upload
from dpexp.tracking.errors import StoreError, short_message
from dpexp.tracking.process.uploader import how_to_deliver
from dpexp.tracking.store.store import Store

DELIVERY_LOCK_TIMEOUT_S = 60.0
SKIPPED = "skipped"
NOT_DELIVERED = "not delivered"
NOT_TRACKED = "not tracked"


@dataclass(frozen=True)
class DeliveryResult:
    """One run's state: ``delivered``, ``already``, ``running``, ``closed``, ``skipped``, ``not delivered``.

    Or ``not tracked``: the user has kept it off the store.

    A run is skipped that nothing can deliver: its journal cannot be read.
    """

    run_id: str
    state: str
    message: str = ""

    @property
    def is_well(self) -> bool:
        """Whether this run needs nothing more now."""
        return self.state != NOT_DELIVERED


def undelivered(home: Path) -> list[Path]:
    """The runs that may be delivered, and are not complete in this environment's store."""
    return [folder for folder in _incomplete(home) if _is_tracked(folder)]


def untracked(home: Path) -> list[Path]:
    """The runs with ``--no-track`` that this environment's store does not have: delivered when named."""
    return [folder for folder in _incomplete(home) if not _is_tracked(folder)]


def _incomplete(home: Path) -> list[Path]:
    store = Store.from_environment(home).name
    runs = [folder for folder in folders(home / "runs") if os.path.exists(folder / JOURNAL)]
    return [folder for folder in runs if not ledger.is_complete(folder, store)]


def dead(home: Path) -> list[Path]:
    """The runs whose process died: without a Record, or perhaps still running in the store."""
    store = Store.from_environment(home).name
    ended = [folder for folder in folders(home / "runs") if _has_ended(folder)]
    return [
        folder
        for folder in ended
        if not os.path.exists(folder / RECORD)
        or (ledger.state(folder, store) == "in part" and _is_tracked(folder))
    ]


def lost(home: Path) -> list[Path]:
    """The delivered runs that the store does not have any more, and those of sweeps that it has lost.

    Asks each experiment once. Raises StoreError when the store cannot be asked.
    """
    store = Store.from_environment(home)
    runs = {folder: ledger.read_ledger(folder).get(store.name) for folder in folders(home / "runs")}
    delivered = {folder: entry for folder, entry in runs.items() if entry is not None and entry.complete}
    if not delivered:
        return []
    try:
        store.open()
        experiments = {entry.experiment_id for entry in delivered.values()}
        present = set[str]().union(*map(store.run_ids, experiments))
    except StoreError:
        raise
    except Exception as error:  # any store, any driver
        raise StoreError(f"the store {store.name} cannot be asked: {short_message(error)}") from error
    gone = {folder for folder, entry in delivered.items() if entry.mlflow_run_id not in present}
    sweeps = {folder: _parent(folder) for folder in delivered} if gone else {}
    found = [folder for folder, sweep in sweeps.items() if folder in gone or sweep in gone]
    return sorted(found, key=lambda folder: sweeps[folder] is not None)  # runs name their sweep's MLflow run


def _parent(folder: Path) -> Path | None:
    try:
        return ledger.parent_folder(folder, Record.load(folder))
    except JournalError:
        return None


def deliver(
    home: Path, runs: Iterable[Path], *, again: bool = False, named: bool = False
) -> Iterator[DeliveryResult]:
    """Deliver runs; with ``again`` also complete ones.

    Runs that are not tracked are delivered only where the user has ``named`` these. Raises StoreError when
    the store cannot be opened.
    """
    store = Store.from_environment(home)
    for folder in runs:
        if not again and ledger.is_complete(folder, store.name):
            yield DeliveryResult(folder.name, "already")
        elif not _has_ended(folder):
            yield DeliveryResult(folder.name, "running", "its own uploader delivers it")
        else:
            try:
                record = Record.load(folder)
            except JournalError as error:
                yield DeliveryResult(folder.name, SKIPPED, str(error))
                continue
            closed = close(folder) if not (folder / RECORD).exists() else None
            if closed is not None and not closed.is_well:
                yield closed
                continue
            if not named and not ledger.is_tracked(folder, record):
                yield DeliveryResult(folder.name, NOT_TRACKED, f"{how_to_deliver(folder.name)} delivers it")
                continue
            with private_files():
                store.open()
                result = _deliver(store, folder, again)
            yield result


def close(folder: Path) -> DeliveryResult:
    """Write the Record of a run whose process died; ``deliver`` then ends it in the store."""
    try:
        record = finish(folder / JOURNAL)
    except JournalError as error:
        return DeliveryResult(folder.name, SKIPPED, str(error))
    if not (folder / RECORD).exists():
        return DeliveryResult(folder.name, NOT_DELIVERED, record.damage[-1])
    steps = len(present(record.steps["time_ms"]))
    return DeliveryResult(folder.name, "closed", f"{record.status}, {plural(steps, 'step')} recorded")


def _deliver(store: Store, folder: Path, again: bool) -> DeliveryResult:
    try:
        with ledger.delivery_lock(folder, DELIVERY_LOCK_TIMEOUT_S):
            if not again and ledger.is_complete(folder, store.name):
                return DeliveryResult(folder.name, "already")
            return DeliveryResult(
                folder.name, "delivered", Upload(store, folder / JOURNAL).complete().message
            )
    except (DeliveryLockedError, StoreError, JournalError) as error:
        return DeliveryResult(folder.name, NOT_DELIVERED, str(error))
    except Exception as error:  # any store, any driver
        with contextlib.suppress(OSError), (folder / LOG).open("a") as log:  # the disk may be full
            log.write(redact(traceback.format_exc()))
        return DeliveryResult(folder.name, NOT_DELIVERED, short_message(error))


def _has_ended(folder: Path) -> bool:
    """Whether there is a journal without a writer; true of one that cannot be read, which is reported."""
    try:
        return not is_open(folder / JOURNAL)
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _is_tracked(folder: Path) -> bool:
    """Whether a run is delivered though no one names it; True of one that cannot be read: it is reported."""
    try:
        return ledger.is_tracked(folder, Record.load(folder))
    except JournalError:
        return True
