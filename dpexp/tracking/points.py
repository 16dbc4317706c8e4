"""Points: thousands at once into MLflow's SQLite file, many times as fast as MLflow's own call.

``MlflowClient.log_batch`` makes an object of every point and compares it with others, a thousand points a
call; here SQLite itself leaves out what is there already. The rows are the same, bit by bit: a test
compares. Only tables exactly as they are known here are written; for others ``fits`` is False and MLflow's
client is to be used.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path

from dpexp.tracking.content import Point
from dpexp.tracking.errors import GoneError

BATCH = 10_000
"""Points a call, so that other writers wait less than a tenth of a second."""
BUSY_S = 20.0
"""How long another writer may hold the file: what MLflow itself allows."""
LARGEST = 1.7976931348623157e308
"""What MLflow keeps in the place of an infinity."""
_POINT = {"key", "value", "timestamp", "run_uuid", "step", "is_nan"}
TABLES = {"metrics": (_POINT, _POINT), "latest_metrics": (_POINT, {"key", "run_uuid"})}
"""Columns and primary key, by table."""
_INTO = "(key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?, ?, ?, ?, ?)"
_EVERY = f"INSERT INTO metrics {_INTO} ON CONFLICT DO NOTHING"
_LATEST = (
    f"INSERT INTO latest_metrics {_INTO} ON CONFLICT (key, run_uuid) DO UPDATE SET value = excluded.value, "
    "timestamp = excluded.timestamp, step = excluded.step, is_nan = excluded.is_nan "
    "WHERE (excluded.step, excluded.timestamp, excluded.value) > (step, timestamp, value)"
)
_Row = tuple[str, float, int, str, int, bool]


def fits(path: Path) -> bool:
    """Whether the file's tables are those that ``insert`` knows."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as connection:
        known = all(_columns(connection, table) == expected for table, expected in TABLES.items())
        return known and {"run_uuid", "lifecycle_stage"} <= _columns(connection, "runs")[0]
    return False


def insert(path: Path, run_id: str, points: Iterable[Point]) -> None:
    """All of the points or none; what is there already stays one row.

    Raises sqlite3.Error, GoneError.
    """
    rows = [_row(run_id, point) for point in points]
    with contextlib.closing(sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            state = connection.execute(
                "SELECT lifecycle_stage FROM runs WHERE run_uuid = ?", (run_id,)
            ).fetchone()
            if state != ("active",):
                raise GoneError(f"the MLflow run {run_id} is {state[0] if state else 'not there'}")
            connection.executemany(_EVERY, rows)
            connection.executemany(_LATEST, _latest(rows).values())


def _columns(connection: sqlite3.Connection, table: str) -> tuple[set[str], set[str]]:
    rows = connection.execute(f"PRAGMA table_info({table})").fetchall()
    return {row[1] for row in rows}, {row[1] for row in rows if row[5]}


def _row(run_id: str, point: Point) -> _Row:
    is_nan = math.isnan(point.value)
    value = 0.0 if is_nan else max(-LARGEST, min(LARGEST, point.value))
    return (point.key, value, point.at, run_id, point.step, is_nan)


def _latest(rows: Iterable[_Row]) -> Mapping[str, _Row]:
    """Of each metric the row of the last step."""
    latest: dict[str, _Row] = {}
    for row in rows:
        known = latest.get(row[0])
        if known is None or (row[4], row[2], row[1]) > (known[4], known[2], known[1]):
            latest[row[0]] = row
    return latest
