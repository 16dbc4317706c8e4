"""Sync: delivers runs later, and closes runs whose process died. ``scripts/runs.py`` calls it."""

import contextlib
import os
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dpexp.config.ranges import plural
from dpexp.record.journal.durable import private_files, private_opener
from dpexp.record.journal.fold import finish, load
from dpexp.record.journal.journal import JOURNAL, RECORD, is_open
from dpexp.record.journal.temporary_folder import temporary_files
from dpexp.record.record import JournalError, present
from dpexp.record.redact import redact
from dpexp.record.runs.check import check_end
from dpexp.record.runs.index import folders
from dpexp.tracking.delivery import check, ledger, permission, stored
from dpexp.tracking.delivery.ledger import DeliveryLockedError
from dpexp.tracking.delivery.upload import LOG, Upload
from dpexp.tracking.errors import LateServerError, StoreError, short_message
from dpexp.tracking.process.uploader import how_to_deliver
from dpexp.tracking.store.store import Store

DELIVERY_LOCK_TIMEOUT_S = 60.0
SKIPPED = "skipped"
NOT_DELIVERED = "not delivered"
NOT_TRACKED = "not tracked"
LATE = "does not give whole answers in time"


@dataclass(frozen=True)
class DeliveryResult:
    """One run's state: ``delivered``, ``already``, ``running``, ``closed``, ``skipped``, ``not delivered``.

    Or ``not tracked``: the user has kept it off the store.

    A run is skipped that nothing can deliver: its journal is empty, or dpexp did not write it, or it has
    lost what the store has.
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
    return [folder for folder in _incomplete(home) if _may_deliver(home, folder)]


def untracked(home: Path) -> list[Path]:
    """The runs with ``--no-track`` that this environment's store does not have: delivered when named."""
    return [each for each in _incomplete(home) if _has_journal(each) and not _may_deliver(home, each)]


def _incomplete(home: Path) -> list[Path]:
    store = Store.from_environment(home).name
    known = ledger.ledgers(home, folders(home / "runs"))
    return [folder for folder, each in known.items() if not each.is_complete(store)]


def dead(home: Path) -> list[Path]:
    """The runs whose process died: without a Record, or perhaps still running in the store."""
    store = Store.from_environment(home).name
    ended = [folder for folder in folders(home / "runs") if _has_ended(folder)]
    return [
        folder
        for folder in ended
        if not _has_record(folder) or (_is_partial(folder, store) and _may_deliver(home, folder))
    ]


def lost(home: Path) -> list[Path]:
    """The delivered runs that the store does not have as they were delivered, as far as one call shows.

    Raises StoreError when it cannot be asked, LateServerError where it is asked nothing more.
    """
    store = Store.from_environment(home)
    known, name = ledger.ledgers(home, folders(home / "runs")), store.name
    delivered = {folder: each.entries[name] for folder, each in known.items() if each.is_complete(name)}
    try:
        if delivered and check.exists(store):
            store.open()
        return stored.lost(store, delivered) if delivered else []
    except Exception as error:  # any store, any driver
        kind = LateServerError if store.is_late else StoreError
        what = "" if isinstance(error, StoreError) else f"the store {store.name} cannot be asked: "
        raise kind(f"{what}{short_message(error)}") from error


def runs_of(home: Path, sweeps: Iterable[Path]) -> list[Path]:
    """The other delivered runs of these sweeps: they name the MLflow runs that these had before."""
    wanted, store = set(sweeps), Store.from_environment(home).name
    if not wanted:
        return []
    others = [folder for folder in folders(home / "runs") if folder not in wanted]
    return [each for each in others if _sweep_of(each) in wanted and ledger.is_complete(each, store)]


def is_child(folder: Path) -> bool:
    """Whether a run belongs to a sweep, whose MLflow run it names: that may be new after a repair."""
    return _sweep_of(folder) is not None


def _sweep_of(folder: Path) -> Path | None:
    """The folder of the sweep that a run belongs to; None for a run that cannot be read."""
    try:
        return ledger.parent_folder(folder, load(folder))
    except JournalError:
        return None


def deliver(
    home: Path, runs: Iterable[Path], *, again: bool = False, new_run: bool = False, named: bool = False
) -> Iterator[DeliveryResult]:
    """Deliver runs; with ``again`` also complete ones, with ``new_run`` into new MLflow runs.

    Runs that are not tracked are delivered only where the user has ``named`` these (see ``permission``).
    Those of sweeps come first: their runs name them. Raises StoreError when the store cannot be opened, and
    LateServerError, before the next run, where an answer of a server was late.
    """
    store = Store.from_environment(home)
    for folder in sorted(runs, key=is_child) if new_run else runs:
        if store.is_late:
            raise LateServerError(f"the store {store.name} {LATE}: no other run was tried")
        if not again and ledger.is_complete(folder, store.name):
            yield DeliveryResult(folder.name, "already")
        elif not _has_ended(folder):
            yield DeliveryResult(folder.name, "running", "its own uploader delivers it")
        else:
            try:
                load(folder)
            except JournalError as error:
                yield DeliveryResult(folder.name, SKIPPED, str(error))
                continue
            closed = close(folder) if not _has_record(folder) else None
            if closed is not None and not closed.is_well:
                yield closed
                continue
            if not named and not _may_deliver(home, folder):
                yield DeliveryResult(folder.name, NOT_TRACKED, f"{how_to_deliver(folder.name)} delivers it")
                continue
            with private_files():
                store.open()
                result = _deliver(store, folder, again, new_run)
            yield result


def close(folder: Path) -> DeliveryResult:
    """Write the Record of a run whose process died; ``deliver`` then ends it in the store."""
    try:
        record = finish(folder / JOURNAL)
    except JournalError as error:
        return DeliveryResult(folder.name, SKIPPED, str(error))
    if not (folder / RECORD).exists():
        return DeliveryResult(folder.name, NOT_DELIVERED, record.damage[-1])
    check_end(folder, record)
    steps = len(present(record.steps["time_ms"]))
    return DeliveryResult(folder.name, "closed", f"{record.status}, {plural(steps, 'step')} recorded")


def _deliver(store: Store, folder: Path, again: bool, new_run: bool) -> DeliveryResult:
    try:
        with temporary_files("delivery"), ledger.delivery_lock(folder, DELIVERY_LOCK_TIMEOUT_S):
            if check.keeps_more(store, folder):
                return DeliveryResult(
                    folder.name, SKIPPED, f"its journal has lost what {store.name} has and keeps"
                )
            if new_run:
                check.delete_mlflow_run(store, folder)
            if not again and ledger.is_complete(folder, store.name):
                return DeliveryResult(folder.name, "already")
            upload = Upload(store, folder / JOURNAL, named=True)  # `deliver` has asked for permission
            return DeliveryResult(folder.name, "delivered", upload.complete().message)
    except (DeliveryLockedError, StoreError, JournalError) as error:
        return DeliveryResult(folder.name, NOT_DELIVERED, str(error))
    except Exception as error:  # any store, any driver
        full = contextlib.suppress(OSError)  # the disk may be
        with full, open(folder / LOG, "a", opener=private_opener) as log:
            log.write(redact(traceback.format_exc()))
        return DeliveryResult(folder.name, NOT_DELIVERED, short_message(error))


def _has_journal(folder: Path) -> bool:
    """False only where there is none: one of another user, which cannot be read, is reported."""
    try:
        return (folder / JOURNAL).exists()
    except PermissionError:
        return True


def _has_record(folder: Path) -> bool:
    return os.path.exists(folder / RECORD)  # False where it is not allowed to look


def _has_ended(folder: Path) -> bool:
    """Whether there is a journal without a writer; true of one that cannot be read, which is reported."""
    try:
        return not is_open(folder / JOURNAL)
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _is_partial(folder: Path, store: str) -> bool:
    return store in ledger.read_ledger(folder) and not ledger.is_complete(folder, store)


def _may_deliver(home: Path, folder: Path) -> bool:
    """Whether this environment's store may get a run; True of one that cannot be read, which is reported."""
    try:
        return permission.may_deliver(folder, load(folder), Store.from_environment(home).name)
    except (OSError, JournalError):
        return _has_journal(folder)
