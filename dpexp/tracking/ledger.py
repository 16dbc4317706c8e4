"""Ledger: which stores hold which part of a run, and the lock under which one process at a time delivers it.

``delivery.json`` beside the journal names, for each store, the MLflow run and whether everything is there.
The store itself has the last word on how far a delivery came, so that the ledger may be old or lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dpexp.record import write_atomically

LEDGER = "delivery.json"
LOCK = ".delivery.lock"


@dataclass(frozen=True)
class Account:
    """What one store holds of a run. ``journal_bytes`` is the journal's length when it was complete there."""

    experiment_id: str
    mlflow_run_id: str
    complete: bool = False
    journal_bytes: int = 0


class Busy(RuntimeError):  # noqa: N818 - it is no error: the run is in good hands
    """Another process delivers this run at this moment."""


def read(folder: Path) -> dict[str, Account]:
    """The accounts of a run, by the store's name; empty where nothing was delivered."""
    try:
        data = json.loads((folder / LEDGER).read_bytes())
        return {store: Account(**account) for store, account in data.items()}
    except (OSError, ValueError, TypeError, AttributeError):  # none, or damaged: the store itself knows
        return {}


def write(folder: Path, store: str, account: Account) -> None:
    """Note what a store holds; the other stores' accounts stay."""
    accounts = read(folder) | {store: account}
    text = json.dumps({name: dataclasses.asdict(a) for name, a in accounts.items()}, indent=1)
    write_atomically(folder / LEDGER, text.encode())


def is_complete(folder: Path, store: str) -> bool:
    """Whether the store has everything that the journal holds now."""
    account = read(folder).get(store)
    if account is None or not account.complete:
        return False
    with contextlib.suppress(OSError):
        return account.journal_bytes == (folder / "journal.jsonl").stat().st_size
    return False


@contextlib.contextmanager
def delivering(folder: Path, wait_s: float) -> Iterator[None]:
    """Hold the run's delivery lock. Raises Busy when another process holds it longer than ``wait_s``."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / LOCK, timeout=wait_s)
    try:
        lock.acquire()
    except Timeout:
        raise Busy(f"run {folder.name} is being delivered by another process") from None
    try:
        yield
    finally:
        lock.release()


def delivered(home: Path, run_ids: Iterable[str]) -> dict[str, str]:
    """``yes``, ``in part``, ``elsewhere`` (in another store) or ``no``, for this environment's store."""
    from dpexp.tracking.store import Store

    store, runs = Store.of(home).name, home / "runs"
    return {run_id: _state(runs / run_id, store) for run_id in run_ids}


def _state(folder: Path, store: str) -> str:
    accounts = read(folder)
    if store in accounts:
        return "yes" if is_complete(folder, store) else "in part"
    return "elsewhere" if any(account.complete for account in accounts.values()) else "no"
