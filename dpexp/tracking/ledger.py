"""The ledger: what each store has of a run, and the lock that lets one process at a time deliver it.

``delivery.json`` beside the journal is a cache: the store itself knows its runs, so it may be lost or wrong.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dpexp.record.files import write_atomically
from dpexp.record.journal import JOURNAL
from dpexp.tracking.store import Store, StoreError

LEDGER = "delivery.json"
LOCK = ".delivery.lock"
LOCK_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Entry:
    """What one store has of a run: the points of the first ``journal_bytes``, or all (``complete``)."""

    experiment_id: str = ""
    mlflow_run_id: str = ""
    complete: bool = False
    journal_bytes: int = 0
    message: str = ""  # of the last delivery


@dataclass(frozen=True)
class Delivery:
    """How a delivery ended; ``message``: where to look, or why it is incomplete."""

    complete: bool
    message: str


def read(folder: Path) -> dict[str, Entry]:
    """The ledger of a run by store; empty where nothing was delivered, or the ledger cannot be read."""
    known = {field.name for field in dataclasses.fields(Entry)}
    try:
        rows = json.loads((folder / LEDGER).read_bytes()).items()
        return {
            store: Entry(**{key: value for key, value in row.items() if key in known}) for store, row in rows
        }
    except (OSError, ValueError, TypeError, AttributeError):  # the store itself knows
        return {}


def write(folder: Path, store: str, entry: Entry) -> None:
    """Record what a store has; the entries of other stores stay. Raises OSError."""
    text = json.dumps(read(folder) | {store: entry}, default=vars, indent=1)
    write_atomically(folder / LEDGER, text.encode())


def state(folder: Path, store: str) -> str:
    """What a store has of a run: ``yes``, ``in part``, ``elsewhere`` (another store has it) or ``no``."""
    entries = read(folder)
    entry = entries.get(store)
    if entry is None or not entry.mlflow_run_id:
        return "elsewhere" if any(other.complete for other in entries.values()) else "no"
    try:
        is_whole = entry.complete and entry.journal_bytes == (folder / JOURNAL).stat().st_size
    except OSError:
        is_whole = False
    return "yes" if is_whole else "in part"


def delivered(home: Path, run_ids: Iterable[str]) -> dict[str, str]:
    """The ``state`` of each run, for this environment's store."""
    store = Store.from_environment(home).name
    return {run_id: state(home / "runs" / run_id, store) for run_id in run_ids}


@contextlib.contextmanager
def lock(folder: Path, *, forever: bool = False) -> Iterator[None]:
    """Hold the run's delivery lock. Raises StoreError unless it waits ``forever`` for another process."""
    from filelock import FileLock, Timeout  # 0.1 s, and a run itself locks no delivery

    try:
        with FileLock(folder / LOCK, timeout=-1 if forever else LOCK_TIMEOUT_S):
            yield
    except Timeout:
        raise StoreError(f"another process is delivering run {folder.name}") from None
