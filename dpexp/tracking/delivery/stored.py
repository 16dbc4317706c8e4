"""Stored: whether a store still has the last points of delivered runs, which ``sync`` asks of all of them.

To compare a run with the store takes its Record and a call. So the ledger keeps a checksum of the last points
that an SQLite file had when they agreed, and one query gives those of all runs: only runs whose checksum is
another, or that have none yet, are compared. A server is asked for each run.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path

from dpexp.record.journal.fold import load
from dpexp.record.record import JournalError
from dpexp.tracking.content import content
from dpexp.tracking.delivery import check, ledger
from dpexp.tracking.delivery.ledger import DeliveryLockedError, LedgerEntry
from dpexp.tracking.store.store import Store


def lost(store: Store, delivered: Mapping[Path, LedgerEntry]) -> list[Path]:
    """Those of these delivered runs that the store does not have. May raise what the store raises."""
    checksums = store.points_checksums() if check.exists(store) else {}
    found = []
    for folder, entry in delivered.items():
        now = checksums.get(entry.mlflow_run_id, "")
        if now and now == entry.points_crc:
            continue
        if not is_stored(store, folder, entry):
            found.append(folder)
        elif now:
            _remember(store, folder, now)
    return found


def is_stored(store: Store, folder: Path, entry: LedgerEntry) -> bool:
    """The cheap part of ``store_problems``, one call: the last point of each metric is as expected."""
    found = check.active(store, folder, entry)
    if found is None:
        return False
    try:
        then = check.content_then(found)
        expected = then.expected_metrics(load(folder))
    except JournalError:  # which `undelivered` reports
        return True
    latest = {m.key: (int(m.step), m.value) for m in found.data.to_proto().metrics}
    for key, points in expected.items():
        if key not in latest and then.may_lack(key):
            continue
        last = max(points)
        step, value = latest.get(key, (-1, 0.0))
        if step < last or (step == last and not content.is_same_value(value, points[last])):
            return False
    return True


def _remember(store: Store, folder: Path, points_crc: str) -> None:
    """Note in the ledger what the store had when it was compared, unless another process delivers the run."""
    with contextlib.suppress(OSError, DeliveryLockedError), ledger.delivery_lock(folder, 0):
        entry = ledger.read_ledger(folder).get(store.name)
        if entry is not None and ledger.is_complete(folder, store.name):
            ledger.write_entry(folder, store.name, dataclasses.replace(entry, points_crc=points_crc))
