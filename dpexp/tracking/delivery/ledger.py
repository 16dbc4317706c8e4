"""Ledger: which stores have received which part of a run, and the lock that allows one delivery at a time.

``delivery.json`` beside the journal names the MLflow run of each store and whether it is complete. The store
itself decides how far a delivery has come, so the ledger may be outdated, damaged or lost. Its seal
names the run: that of another one is not believed.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpexp.record.journal.durable import read_file, write_atomically
from dpexp.record.journal.journal import JOURNAL, RUN_ID
from dpexp.record.journal.seal import checksum, seal, unseal
from dpexp.record.record import Record
from dpexp.record.runs.cache import Cache
from dpexp.tracking.store.store import Store

LEDGER = "delivery.json"
LOCK = ".delivery.lock"


@dataclass(frozen=True)
class LedgerEntry:
    """What one store has of a run.

    ``journal_bytes`` and ``journal_crc`` are those of the journal at a complete delivery; of another one
    ``journal_bytes`` is the length when it began. ``points_crc`` is what ``stored`` compares.
    """

    experiment_id: str
    mlflow_run_id: str
    complete: bool = False
    journal_bytes: int = 0
    journal_crc: str = ""
    points_crc: str = ""


_TYPES = [str, str, bool, int, str, str]
_RUN = "run"
"""The key of the run's id in the seal; earlier versions did not write it."""


class DeliveryLockedError(RuntimeError):
    """Another process is delivering this run."""


def read_ledger(folder: Path) -> dict[str, LedgerEntry]:
    """The ledger of a run by store; empty where nothing was delivered, or the ledger cannot be read."""
    try:
        return read_undamaged(folder)
    except (OSError, ValueError):  # the store itself knows
        return {}


def read_undamaged(folder: Path) -> dict[str, LedgerEntry]:
    """The ledger of a run by store. Raises FileNotFoundError where nothing was delivered.

    Raises another OSError where it cannot be read, and ValueError where it is damaged, or another run's.
    """
    data, source = unseal(read_file(folder / LEDGER))
    if (run_id := source.get(_RUN, folder.name)) != folder.name:
        raise ValueError(f"it is that of run {run_id}")
    try:
        entries = {store: LedgerEntry(**entry) for store, entry in data.items()}
    except TypeError as error:
        raise ValueError(f"not a ledger: {error}") from None
    wrong = [entry for entry in entries.values() if [*map(type, vars(entry).values())] != _TYPES]
    if wrong:
        raise ValueError(f"not what dpexp writes: {wrong[0]}")
    return entries


def write_entry(folder: Path, store: str, entry: LedgerEntry) -> None:
    """Record what a store has; the entries of other stores stay."""
    text = json.dumps(read_ledger(folder) | {store: entry}, default=vars, indent=1)
    write_atomically(folder / LEDGER, seal(text, {_RUN: folder.name} | checksum(folder / JOURNAL)))


@dataclass(frozen=True)
class Ledger:
    """A run's ledger by store, and how long its journal is; that is None without one."""

    entries: dict[str, LedgerEntry]
    journal_bytes: int | None

    @classmethod
    def read(cls, folder: Path) -> Ledger:
        """The ledger of a run as it is now."""
        try:
            return cls(read_ledger(folder), os.stat(f"{folder}/{JOURNAL}").st_size)
        except OSError:
            return cls(read_ledger(folder), None)

    def is_complete(self, store: str) -> bool:
        """Whether the store has everything that the journal holds."""
        entry = self.entries.get(store)
        return entry is not None and entry.complete and entry.journal_bytes == self.journal_bytes

    def state(self, store: str) -> str:
        """``yes``, ``in part``, ``elsewhere`` (another store) or ``no``."""
        if store in self.entries:
            return "yes" if self.is_complete(store) else "in part"
        return "elsewhere" if any(entry.complete for entry in self.entries.values()) else "no"


def ledgers(home: Path, folders: Iterable[Path]) -> dict[Path, Ledger]:
    """The ledgers of these runs of a home. They are kept (see ``cache``)."""
    found = {}
    with Cache[tuple[int | None, dict[str, list[Any]]]](home / "runs", "ledgers", (LEDGER, JOURNAL)) as cache:
        for folder in folders:
            known = cache.get(folder)
            if known is not None:
                entries = {store: LedgerEntry(*values) for store, values in known[1].items()}
                found[folder] = Ledger(entries, known[0])
                continue
            ledger = found[folder] = Ledger.read(folder)
            plain = {store: [*vars(entry).values()] for store, entry in ledger.entries.items()}
            cache.keep(folder, (ledger.journal_bytes, plain))
    return found


def is_complete(folder: Path, store: str) -> bool:
    """Whether the store has everything that the journal holds now."""
    return Ledger.read(folder).is_complete(store)


def parent_folder(folder: Path, record: Record) -> Path | None:
    """The folder of the sweep that a run belongs to; None for a name that leads elsewhere."""
    parent = record.parent
    if not isinstance(parent, str) or parent == folder.name or not RUN_ID.fullmatch(parent):
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


def is_being_delivered(folder: Path) -> bool:
    """Whether a process is delivering the run: its uploader may, after the run has ended."""
    if not (folder / LOCK).exists():
        return False
    try:
        with delivery_lock(folder, 0):
            return False
    except DeliveryLockedError:
        return True
    except OSError:  # of another user
        return False


def delivered(home: Path, run_ids: Iterable[str]) -> dict[str, str]:
    """``yes``, ``in part``, ``elsewhere`` (another store) or ``no`` by run, for this environment's store."""
    store, runs = Store.from_environment(home).name, home / "runs"
    found = ledgers(home, (runs / run_id for run_id in run_ids))
    return {folder.name: ledger.state(store) for folder, ledger in found.items()}
