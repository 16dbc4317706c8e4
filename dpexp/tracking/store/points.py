"""Points: many at once into an MLflow store in SQLite, by two statements of SQL.

MLflow's ``log_batch`` makes objects of every point and of those that are there, which takes 70 µs a point: a
run of a million steps keeps it busy for minutes. Here SQLite itself leaves out what is there already. The
rows are the same, which a test compares. Only tables exactly as they are known here are written; for others
``fits`` is False, and MLflow's client delivers.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
import zlib
from collections.abc import Iterable
from pathlib import Path

from dpexp.tracking.content.content import Point, stored_value

BUSY_S = 20.0
"""How long another writer may hold the file: what MLflow itself allows."""
_COLUMNS = {"key", "value", "timestamp", "run_uuid", "step", "is_nan"}
_TABLES = ("metrics", "latest_metrics")
_INTO = "(key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?, ?, ?, ?, ?)"
_EVERY = f"INSERT INTO metrics {_INTO} ON CONFLICT DO NOTHING"
_LATEST = (
    f"INSERT INTO latest_metrics {_INTO} ON CONFLICT (key, run_uuid) DO UPDATE SET value = excluded.value, "
    "timestamp = excluded.timestamp, step = excluded.step, is_nan = excluded.is_nan "
    "WHERE (excluded.step, excluded.timestamp, excluded.value) > (step, timestamp, value)"
)
_LAST = "SELECT run_uuid, key || ' ' || step || ' ' || quote(value) || ' ' || is_nan FROM latest_metrics"
_TAGGED = (
    "SELECT runs.run_uuid, tags.value FROM runs LEFT JOIN tags ON tags.run_uuid = runs.run_uuid AND key = ? "
    "WHERE lifecycle_stage = 'active'"
)
_OF_RUN = "SELECT key, step, CASE WHEN is_nan THEN NULL ELSE value END FROM latest_metrics WHERE run_uuid = ?"
LastPoint = tuple[int, float]
"""The step and the value of the last point of a metric."""
_Row = tuple[str, float, int, str, int, bool]


def fits(path: Path) -> bool:
    """Whether the tables of the file are those that ``insert`` knows."""
    with contextlib.closing(sqlite3.connect(path, timeout=BUSY_S)) as connection:
        return all(_columns(connection, table) == _COLUMNS for table in _TABLES)


def insert(path: Path, run_id: str, points: Iterable[Point]) -> None:
    """Write all of the points or none; what is there already stays one row.

    Raises sqlite3.Error, and MlflowException where the run is deleted or missing.
    """
    rows = [_row(run_id, point) for point in points]
    by_step = sorted(rows, key=lambda row: (row[4], row[2], row[1]))
    latest = {row[0]: row for row in (*rows, *by_step)}  # in the order given, which MLflow keeps
    with contextlib.closing(sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            _check_active(connection, run_id)
            connection.executemany(_EVERY, rows)
            connection.executemany(_LATEST, latest.values())


def checksums(path: Path, tag: str) -> dict[str, str]:
    """{run: a checksum of its last points and of this tag}, of the active runs."""
    with contextlib.closing(sqlite3.connect(path, timeout=BUSY_S)) as connection:
        last, tagged = connection.execute(_LAST), connection.execute(_TAGGED, (tag,))
        return _checksums(last, tagged)


def last_points(path: Path, tag: str, run_id: str) -> tuple[str, dict[str, LastPoint]]:
    """The checksum of one run, empty where it is not active, and its last points by metric."""
    with contextlib.closing(sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)) as connection:
        connection.execute("BEGIN")  # both are of one state of the file
        last = connection.execute(f"{_LAST} WHERE run_uuid = ?", (run_id,))
        tagged = connection.execute(f"{_TAGGED} AND runs.run_uuid = ?", (tag, run_id))
        checksum = _checksums(last, tagged).get(run_id, "")
        found = connection.execute(_OF_RUN, (run_id,))
        return checksum, {key: (step, math.nan if v is None else v) for key, step, v in found}


def _checksums(last: Iterable[tuple[str, str]], tagged: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    points: dict[str, list[str]] = {}
    for run, text in last:
        points.setdefault(run, []).append(text)
    texts = {run: "\n".join([value or "", *sorted(points.get(run, []))]) for run, value in tagged}
    return {run: f"{zlib.crc32(text.encode()):08x}" for run, text in texts.items()}


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}


def _check_active(connection: sqlite3.Connection, run_id: str) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

    row = connection.execute("SELECT lifecycle_stage FROM runs WHERE run_uuid = ?", (run_id,)).fetchone()
    if row != ("active",):
        state = row[0] if row else "missing"
        raise MlflowException(f"The MLflow run {run_id} is {state}", RESOURCE_DOES_NOT_EXIST)


def _row(run_id: str, point: Point) -> _Row:
    is_nan = math.isnan(point.value)
    value = 0.0 if is_nan else stored_value(point.value)
    return (point.key, value, point.timestamp, run_id, point.step, is_nan)
