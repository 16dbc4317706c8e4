"""Stored: whether a store still has the last points of delivered runs, which ``sync`` asks of all of them.

To compare a run with the store takes its Record and a call. So the ledger keeps a checksum of the last points
that an SQLite file had when they agreed, at the delivery or later, and one query gives those of all runs:
only runs whose checksum is another, or that have none, are compared. A server is asked for each run.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

from dpexp.record.journal.fold import load
from dpexp.record.record import JournalError
from dpexp.record.view import RecordView
from dpexp.tracking.content import content
from dpexp.tracking.delivery import check, ledger
from dpexp.tracking.delivery.ledger import DeliveryLockedError, LedgerEntry
from dpexp.tracking.store.points import LastPoint
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
    return _are_last(latest, expected, then.may_lack)


def points_crc(store: Store, mlflow_run_id: str, view: RecordView) -> str:
    """The checksum for the ledger of a run that was delivered just now: of last points that are as expected.

    Empty where they are not, and of other stores than an SQLite file. One query gives both.
    """
    now, latest = store.last_points(mlflow_run_id)
    are_last = now and _are_last(latest, content.expected_metrics(view), content.may_lack)
    return now if are_last else ""


def _are_last(
    latest: Mapping[str, LastPoint],
    expected: Mapping[str, Mapping[int, float]],
    may_lack: Callable[[str], bool],
) -> bool:
    """Whether the last point of each metric is as expected; later ones may be of a longer journal."""
    for key, points in expected.items():
        if key not in latest and may_lack(key):
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
