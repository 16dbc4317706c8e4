"""A store that cannot be used: one line says what is wrong, where, and what to do; nothing is changed."""

import os
import sqlite3
from pathlib import Path

import pytest
from helpers import needs
from helpers.command_lines import script
from helpers.servers import free_port
from helpers.tracking_processes import drive

from dpexp.record.fold import load_record
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


def test_a_server_that_is_away_is_reported_in_one_line_without_its_login(dpexp_home: Path) -> None:
    port = free_port()
    away = script("ui.py", MLFLOW_TRACKING_URI=f"http://me:hunter22@127.0.0.1:{port}")
    message = f"error: the server http://***@127.0.0.1:{port} cannot be used: connection refused\n"
    assert (away.returncode, away.stderr) == (1, message)
