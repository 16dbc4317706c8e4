"""Points by SQL: the rows that MLflow's own call writes, of active runs, into tables that are known."""

import math
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException

from dpexp.tracking.content.content import Point
from dpexp.tracking.store import points
from dpexp.tracking.store.store import Store

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy warn of each other
BATCHES = [
    [Point("loss", 0.1 + step, 1000 + step, step) for step in range(5)],
    [Point("loss", 9.0, 2000, 3), Point("loss", 0.1 + 4, 1004, 4), Point("loss", 7.5, 900, 4)],
    [Point("loss", math.inf, 3000, 5), Point("other", math.nan, 1, 0), Point("other", -math.inf, 1, 0)],
    [Point("loss", 0.25, 3000, 5), Point("loss", math.nan, 3001, 6), Point("loss", 1e-300, 1, -2)],
]
"""Points again, out of order, at one step, and those that JSON and SQLite have no number for."""


@pytest.fixture
def store(home_with_store: Path) -> Store:
    store = Store.from_environment(home_with_store)
    store.open()
    return store


def new_run(store: Store) -> str:
    return str(store.client.create_run(store.experiment_id("dpexp")).info.run_id)


def path(store: Store) -> Path:
    assert store.sqlite_file is not None
    return store.sqlite_file.path


def rows(store: Store, run_id: str) -> list[list[Any]]:
    """What both tables have of a run."""
    columns = "key, value, timestamp, step, is_nan"
    with closing(sqlite3.connect(path(store))) as connection:
        return [
            sorted(connection.execute(f"SELECT {columns} FROM {table} WHERE run_uuid = ?", (run_id,)))
            for table in ("metrics", "latest_metrics")
        ]


def test_the_rows_are_those_of_mlflows_own_call(store: Store) -> None:
    by_mlflow, by_sql = new_run(store), new_run(store)
    for batch in [*BATCHES, *BATCHES]:  # each point twice
        store.client.log_batch(by_mlflow, metrics=[Metric(*point) for point in batch])
        points.insert(path(store), by_sql, batch)
        assert rows(store, by_sql) == rows(store, by_mlflow)
    assert len(rows(store, by_sql)[0]) == len({point for batch in BATCHES for point in map(str, batch)})


def test_no_point_reaches_a_run_that_was_deleted_or_is_missing(store: Store) -> None:
    deleted = new_run(store)
    store.client.delete_run(deleted)
    for run_id in (deleted, "0" * 32):
        with pytest.raises(MlflowException, match=r"deleted|missing"):
            store.log_points(run_id, BATCHES[0])
        assert rows(store, run_id) == [[], []]


def test_tables_that_are_not_known_get_their_points_from_mlflow(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = new_run(store)
    monkeypatch.setattr(points, "_COLUMNS", {*points._COLUMNS, "one_of_later"})
    monkeypatch.setattr("dpexp.tracking.store.store.insert", lambda *_: pytest.fail("written by SQL"))
    store.log_points(run_id, BATCHES[0])
    assert len(rows(store, run_id)[0]) == len(BATCHES[0])
    assert store.points_checksums() == {}


def test_the_checksum_of_a_run_changes_with_its_last_points(store: Store) -> None:
    runs = [new_run(store), new_run(store)]
    for run_id in runs:
        store.log_points(run_id, BATCHES[0])
    before = store.points_checksums()
    assert before[runs[0]] == before[runs[1]]
    for statement in (
        "UPDATE latest_metrics SET value = value + 1e-14 WHERE run_uuid = ?",
        "UPDATE latest_metrics SET step = step - 1 WHERE run_uuid = ?",
        "DELETE FROM latest_metrics WHERE run_uuid = ?",
    ):
        with closing(sqlite3.connect(path(store))) as connection, connection:
            connection.execute(statement, (runs[0],))
        now = store.points_checksums()
        assert now[runs[0]] != before[runs[0]]
        assert now[runs[1]] == before[runs[1]]
        before = now
    store.client.delete_run(runs[1])
    assert runs[1] not in store.points_checksums()
