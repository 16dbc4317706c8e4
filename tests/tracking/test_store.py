"""A store that cannot be used: one line says what is wrong, where, and what to do; nothing is changed."""

import os
import sqlite3
from pathlib import Path

import pytest
from helpers import journals, needs
from helpers.command_lines import script
from helpers.mlflow_reader import everything
from helpers.tracking_processes import drive

from dpexp.record.fold import load_record
from dpexp.tracking import store
from dpexp.tracking.store import Store, StoreError, create_file

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy warn of each other


def broken_store(path: Path, damage: str) -> str:
    """Write something that is not a usable store; returns what the error must name."""
    if damage == "garbage":
        path.write_bytes(os.urandom(8192))
        return "it is not an SQLite file"
    if damage == "older":
        create_file(path, path.parent / "mlruns")
    connection = sqlite3.connect(path)
    if damage == "older":
        connection.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
    else:
        connection.execute("CREATE TABLE alembic_version (version_num)")
    connection.commit()
    connection.close()
    return {
        "older": "found version 451aebb31d03",
        "locked": "another process keeps it locked",
    }[damage]


def test_a_process_that_is_slow_to_build_the_store_holds_up_no_other(
    dpexp_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that may run only when the machine is idle, while another builds and uses the store."""
    from mlflow.store.tracking import sqlalchemy_store

    path, make = dpexp_home / "mlflow.db", sqlalchemy_store.SqlAlchemyStore
    monkeypatch.setattr(store, "LOCK_TIMEOUT_S", 0.1)

    def slow(*args: str) -> sqlalchemy_store.SqlAlchemyStore:
        monkeypatch.setattr(sqlalchemy_store, "SqlAlchemyStore", make)
        create_file(path, dpexp_home / "mlruns")
        Store.from_environment(dpexp_home).experiment_id("of the other")
        return make(*args)

    monkeypatch.setattr(sqlalchemy_store, "SqlAlchemyStore", slow)
    create_file(path, dpexp_home / "mlruns")
    names = [each.name for each in Store.from_environment(dpexp_home).client.search_experiments()]
    assert names == ["of the other", "Default"]


@pytest.mark.parametrize("damage", ["garbage", "older", "locked"])
def test_a_store_that_cannot_be_used_is_named_and_unchanged(dpexp_home: Path, damage: str) -> None:
    path = dpexp_home / "mlflow.db"
    message = broken_store(path, damage)
    before = path.read_bytes() if path.is_file() else b""
    holder = sqlite3.connect(path if damage == "locked" else ":memory:")
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError) as raised:
        Store.from_environment(dpexp_home).open()
    holder.close()
    assert message in str(raised.value)
    assert str(path) in str(raised.value)
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_a_store_that_cannot_be_used_leaves_the_journal(dpexp_home: Path) -> None:
    message = broken_store(dpexp_home / "mlflow.db", "garbage")
    journal = journals.complete(dpexp_home / "runs")
    synced = script("runs.py", "sync")
    assert synced.returncode == 3
    assert message in synced.stderr
    assert "Traceback" not in synced.stderr
    assert len(load_record(journal.parent).steps["loss"]) == 100


def test_a_mistyped_store_directory_is_not_created(
    dpexp_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mistyped/mlflow.db")
    with pytest.raises(StoreError, match="mistyped does not exist"):
        Store.from_environment(dpexp_home).open()
    assert not (tmp_path / "mistyped").exists()


def test_a_full_store_is_named_and_the_run_ends(dpexp_home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "fixed"
    before = needs.disk(folder, "size=400k")
    driver = drive("finish", steps=20, before=before, MLFLOW_TRACKING_URI=f"sqlite:///{folder}/mlflow.db")
    delivery = driver.delivery()
    assert str(folder) in delivery["message"]
    assert "disk is full" in delivery["message"]
    assert driver.wait() == 3
    assert len(load_record(dpexp_home / "runs" / driver.run_id).steps["loss"]) == 20


def test_artifacts_that_cannot_be_written_are_named_and_come_later(home_with_store: Path) -> None:
    folder = journals.complete(home_with_store / "runs").parent
    (home_with_store / "mlruns").write_text("not a folder")
    failed = script("runs.py", "sync")
    assert failed.returncode == 3
    assert "Traceback" not in failed.stderr
    assert str(home_with_store / "mlruns") in failed.stderr
    (home_with_store / "mlruns").unlink()
    assert script("runs.py", "sync").returncode == 0
    assert "record.json" in everything(f"sqlite:///{home_with_store / 'mlflow.db'}", folder.name)["artifacts"]
