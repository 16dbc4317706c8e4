"""Sync: delivers runs later, and closes those whose process died. ``scripts/runs.py sync`` calls it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dpexp.config.words import plural
from dpexp.record.files import JournalError, private_files
from dpexp.record.journal import JOURNAL, RECORD, is_open
from dpexp.record.runs import folders
from dpexp.record.steps import present
from dpexp.tracking import ledger
from dpexp.tracking.deliver import closed, deliver, is_tracked
from dpexp.tracking.store import Store, StoreError, short_message

NOT_DELIVERED, NOT_TRACKED, READY, SKIPPED = "not delivered", "not tracked", "ready", "skipped"


@dataclass(frozen=True)
class SyncResult:
    """One run's state: ``delivered``, ``not delivered``, ``running``, ``closed``: its process had died.

    Or ``not tracked``: the user has kept it off the store; or ``skipped``: its journal cannot be read.
    """

    run_id: str
    state: str
    message: str = ""

    @property
    def is_well(self) -> bool:
        """Whether this run needs nothing more now."""
        return self.state != NOT_DELIVERED


def sync(home: Path, named: Iterable[Path] | None = None, *, again: bool = False) -> Iterator[SyncResult]:
    """Deliver these runs; without any, all tracked ones that the store lacks.

    With ``again`` also those that it has. Raises StoreError when it cannot be used.
    """
    store = Store.from_environment(home)
    wanted, complete = [], []
    for folder in folders(home / "runs") if named is None else named:
        if not again and ledger.state(folder, store.name) == "yes":
            complete.append(folder)
            continue
        for result in _close(folder, is_named=named is not None):
            if result.state == READY:
                wanted.append(folder)
            else:
                yield result
    if not wanted and not complete:
        return
    store.open()
    lost = _lost(store, complete)
    for folder in [*wanted, *lost]:
        try:
            with private_files(), ledger.lock(folder):
                if not again and folder not in lost and ledger.state(folder, store.name) == "yes":
                    continue  # by another process, just now
                delivery = deliver(store, folder)
            state = "delivered" if delivery.complete else NOT_DELIVERED
            yield SyncResult(folder.name, state, delivery.message)
        except (OSError, StoreError) as error:
            yield SyncResult(folder.name, NOT_DELIVERED, short_message(error))


def _close(folder: Path, *, is_named: bool) -> Iterator[SyncResult]:
    """Write the Record of a run whose process died; then say whether it is ``READY``, or why not."""
    journal, had_record = folder / JOURNAL, (folder / RECORD).exists()
    try:
        if is_open(journal) or (record := closed(folder)).status == "running":
            if is_named:
                yield SyncResult(folder.name, "running", "it is delivered while it runs")
            return
    except (OSError, JournalError) as error:
        if is_named or journal.exists():  # a run that begins just now has none
            yield SyncResult(folder.name, SKIPPED, str(error))
        return
    if not (folder / RECORD).exists():
        yield SyncResult(folder.name, NOT_DELIVERED, record.damage[-1])
        return
    if not had_record:
        steps = len(present(record.steps["time_ms"]))
        yield SyncResult(folder.name, "closed", f"{record.status}, {plural(steps, 'step')} recorded")
    yield SyncResult(folder.name, READY if is_named or is_tracked(folder, record) else NOT_TRACKED)


def _lost(store: Store, delivered: list[Path]) -> list[Path]:
    """The delivered runs that the store does not have any more, and those of sweeps that it has lost."""
    try:
        found = store.runs() if delivered else {}
    except Exception as error:  # any store, any driver
        raise StoreError(f"the store {store.name} cannot be asked: {short_message(error)}") from error
    ids = {run.info.run_id for run in found.values()}
    sweeps = {run_id: run.data.tags.get("mlflow.parentRunId") for run_id, run in found.items()}
    return [folder for folder in delivered if sweeps.get(folder.name, "") not in (None, *ids)]
