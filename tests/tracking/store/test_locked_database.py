"""A database file that another process keeps locked: commands end within their bound, and lose nothing."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import journals
import pytest
from command_lines import script

from dpexp.record.journal.fold import finish

LOCKS = {
    "from writers": ["BEGIN EXCLUSIVE"],
    "from all": ["PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE"],
}


@contextlib.contextmanager
def locked(store: Path, statements: list[str]) -> Iterator[None]:
    with contextlib.closing(sqlite3.connect(store, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
        yield


@pytest.mark.parametrize("lock", LOCKS)
def test_sync_tries_one_run_and_delivers_all_later(home_with_store: Path, runs: Path, lock: str) -> None:
    for number in range(3):
        finish(journals.complete(runs, f"run-{number}"))
    with locked(home_with_store / "mlflow.db", LOCKS[lock]):
        synced = script("runs.py", "sync")
    assert synced.returncode == 3
    assert synced.stderr.count("another process keeps the store") == 1
    assert "run-1" not in synced.stderr, "it is not tried"
    assert synced.stderr.count("\n") <= 2
    assert script("runs.py", "sync").returncode == 0
