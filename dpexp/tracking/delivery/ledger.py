"""Ledger: which stores have received which part of a run, and the lock that allows one delivery at a time.

``delivery.json`` beside the journal names the MLflow run of each store and whether it is complete. The store
itself knows which runs it has, so the ledger may be outdated, damaged or lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dpexp.record.files import JournalError, write_atomically
from dpexp.record.journal import JOURNAL, RUN_ID
from dpexp.record.record import Record
from dpexp.tracking.store.store import Store

LEDGER = "delivery.json"
LOCK = ".delivery.lock"


@dataclass(frozen=True)
class LedgerEntry:
    """What one store has of a run; ``journal_bytes`` is the journal's length at a complete delivery."""

    experiment_id: str
    mlflow_run_id: str
    complete: bool = False
    journal_bytes: int = 0


class DeliveryLockedError(RuntimeError):
    """Another process is delivering this run."""


def read_ledger(folder: Path) -> dict[str, LedgerEntry]:
    """The ledger of a run by store; empty where nothing was delivered, or the ledger cannot be read."""
    known = {field.name for field in dataclasses.fields(LedgerEntry)}
    try:
        rows = json.loads((folder / LEDGER).read_bytes()).items()
        return {
            store: LedgerEntry(**{key: value for key, value in row.items() if key in known})
            for store, row in rows
            if isinstance(row, dict) and "mlflow_run_id" in row
        }
    except (OSError, ValueError, TypeError, AttributeError):  # the store itself knows
        return {}


def write_entry(folder: Path, store: str, entry: LedgerEntry) -> None:
    """Record what a store has; the entries of other stores stay."""
    text = json.dumps(read_ledger(folder) | {store: entry}, default=vars, indent=1)
    write_atomically(folder / LEDGER, text.encode())


def state(folder: Path, store: str) -> str:
    """What a store has of a run: ``yes``, ``in part``, ``elsewhere`` (another store has it) or ``no``."""
    entries = read_ledger(folder)
    entry = entries.get(store)
    if entry is None:
        return "elsewhere" if any(other.complete for other in entries.values()) else "no"
    try:
        is_whole = entry.complete and entry.journal_bytes == (folder / JOURNAL).stat().st_size
    except OSError:
        is_whole = False
    return "yes" if is_whole else "in part"


def is_complete(folder: Path, store: str) -> bool:
    """Whether the store has everything that the journal holds now."""
    return state(folder, store) == "yes"


def is_tracked(folder: Path, record: Record) -> bool:
    """Whether a run is delivered though no one names it: what its sweep's config says, else its own."""
    own = bool(record.config.get("track", True))
    parent = parent_folder(folder, record)
    if parent is None or not (parent / JOURNAL).exists():
        return own
    try:
        return bool(Record.load(parent).config.get("track", own))
    except JournalError:
        return own


def parent_folder(folder: Path, record: Record) -> Path | None:
    """The folder of the sweep that a run belongs to; None for a name that leads elsewhere."""
    parent = record.parent
    if parent == folder.name or not RUN_ID.fullmatch(parent):
        return None
    return folder.with_name(parent)


def parent_tag(folder: Path, record: Record, store: str) -> dict[str, str]:
    """The tag that makes a run a child of its sweep's MLflow run; empty without one."""
    parent = parent_folder(folder, record)
    entry = read_ledger(parent).get(store) if parent is not None else None
    return {} if entry is None else {"mlflow.parentRunId": entry.mlflow_run_id}


@contextlib.contextmanager
def delivery_lock(folder: Path, timeout_s: float) -> Iterator[None]:
    """Hold the run's delivery lock. Raises DeliveryLockedError where another process holds it too long."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(folder / LOCK, timeout=timeout_s):
            yield
    except Timeout:
        raise DeliveryLockedError(f"another process is delivering run {folder.name}") from None


def delivered(home: Path, run_ids: Iterable[str]) -> dict[str, str]:
    """The ``state`` of each run, for this environment's store."""
    store = Store.from_environment(home).name
    return {run_id: state(home / "runs" / run_id, store) for run_id in run_ids}
