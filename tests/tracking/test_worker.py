"""The uploader process: whatever dies or is missing, the run goes on, ends, and loses nothing."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow_reader import everything, history, only_run
from tracking_processes import ROOT, Driven, drive, script, wait_until_gone

from dpexp.record import JOURNAL, RECORD, fold, load
from dpexp.tracking.errors import StoreError
from dpexp.tracking.store import Store

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy, among themselves


@pytest.fixture
def uri(dpexp_home: Path) -> str:
    return f"sqlite:///{dpexp_home / 'mlflow.db'}"


def delivered_steps(uri: str, run_id: str) -> list[float]:
    """The losses in the store, in order; an AssertionError where a step is there twice."""
    points = history(uri, only_run(uri, run_id).info.run_id, "loss")
    assert [step for step, _, _ in points] == list(range(len(points)))
    return [value for _, value, _ in points]


def test_a_run_is_delivered_by_the_time_it_ends(dpexp_home: Path, uri: str) -> None:
    driven = drive("finish")
    delivery = driven.delivery()
    assert delivery["complete"]
    assert driven.over() == 0
    there = everything(uri, driven.run_id)
    assert there["status"] == "FINISHED"
    assert delivery["mlflow_run_id"] == only_run(uri, driven.run_id).info.run_id
    assert delivery["mlflow_run_id"] in delivery["message"]
    assert {"system/cpu_utilization_percentage", "system/process_memory_megabytes"} <= set(there["metrics"])
    with sqlite3.connect(dpexp_home / "mlflow.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_delivered_later_a_run_is_the_same_as_delivered_live(
    dpexp_home: Path, uri: str, tmp_path: Path
) -> None:
    driven = drive("finish")
    assert driven.delivery()["complete"]
    driven.over()
    other = tmp_path / "other"
    other.mkdir()
    synced = script("runs.py", "sync", dpexp_home / "runs" / driven.run_id, DPEXP_HOME=str(other))
    assert synced.returncode == 0, synced.stderr
    assert everything(f"sqlite:///{other / 'mlflow.db'}", driven.run_id) == everything(uri, driven.run_id)


def test_no_run_leaves_no_trace(dpexp_home: Path) -> None:
    with pytest.raises(AssertionError, match="did not begin"):
        drive("abandon")
    deadline = time.monotonic() + 60
    while any(dpexp_home.iterdir()):
        assert time.monotonic() < deadline, list(dpexp_home.iterdir())
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("how", "code", "status"),
    [("kill", -9, "killed"), ("exit", 7, "killed"), ("memory", 1, "killed"), ("raise", 0, "failed")],
)
def test_however_a_run_dies_it_ends_in_mlflow(
    dpexp_home: Path, uri: str, how: str, code: int, status: str
) -> None:
    driven = drive(how)
    assert driven.over() == code
    record = load(dpexp_home / "runs" / driven.run_id)
    assert record.status == status
    assert record.steps["loss"] == delivered_steps(uri, driven.run_id) == [1 / (1 + i) for i in range(50)]
    there = everything(uri, driven.run_id)
    assert there["status"] == status.upper()
    assert there["times"][1] is not None


def test_a_killed_uploader_does_not_stop_the_run_and_sync_delivers_the_rest(
    dpexp_home: Path, uri: str
) -> None:
    driven = drive("finish", steps=100, pause_s=0.3)
    wait_for_steps(dpexp_home, driven, 20)
    os.kill(driven.uploader, signal.SIGKILL)
    delivery = driven.delivery()
    assert not delivery["complete"]
    assert "was killed by SIGKILL" in delivery["message"]
    assert f"python scripts/runs.py sync {driven.run_id}" in delivery["message"]
    assert driven.over() == 3
    assert fold(dpexp_home / "runs" / driven.run_id / JOURNAL).status == "finished"
    synced = script("runs.py", "sync")
    assert synced.returncode == 0, synced.stderr
    assert everything(uri, driven.run_id)["status"] == "FINISHED"
    assert len(delivered_steps(uri, driven.run_id)) == 100


def test_reap_closes_a_run_that_died_with_its_uploader(dpexp_home: Path, uri: str) -> None:
    driven = drive("hang")
    wait_for_steps(dpexp_home, driven, 50)
    wait_for_mlflow(dpexp_home, driven)
    for process in (driven.uploader, driven.process.pid):
        os.kill(process, signal.SIGKILL)
    driven.over()
    folder = dpexp_home / "runs" / driven.run_id
    assert not (folder / RECORD).exists()
    assert only_run(uri, driven.run_id).info.status == "RUNNING"
    reaped = script("runs.py", "reap")
    assert reaped.returncode == 0, reaped.stderr
    assert "closed: killed, 50 steps recorded" in reaped.stdout
    assert load(folder).status == "killed"
    assert everything(uri, driven.run_id)["status"] == "KILLED"
    assert len(delivered_steps(uri, driven.run_id)) == 50
    assert script("runs.py", "reap").stdout == "no dead run\n"


def test_a_stopped_uploader_never_holds_up_the_run(dpexp_home: Path, uri: str) -> None:
    driven = drive("finish", steps=20000, pause_s=0, wait_s=0.5)
    os.kill(driven.uploader, signal.SIGSTOP)
    delivery = driven.delivery()
    assert not delivery["complete"]
    assert delivery["message"].startswith("not delivered within 0.5 s")
    os.kill(driven.uploader, signal.SIGCONT)
    driven.over()
    assert everything(uri, driven.run_id)["status"] == "FINISHED"
    assert len(delivered_steps(uri, driven.run_id)) == 20000


def test_without_mlflow_a_run_is_recorded_like_any_other(dpexp_home: Path, uri: str, tmp_path: Path) -> None:
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "__init__.py").write_text("raise ImportError('No module named mlflow')")
    driven = drive("finish", PYTHONPATH=str(tmp_path))
    delivery = driven.delivery()
    assert driven.over() == 3
    assert "mlflow cannot be imported here (No module named mlflow)" in delivery["message"]
    assert not (dpexp_home / "mlflow.db").exists()
    assert load(dpexp_home / "runs" / driven.run_id).status == "finished"
    assert script("runs.py", "sync").returncode == 0
    assert len(delivered_steps(uri, driven.run_id)) == 50


def test_first_runs_at_once_share_one_new_store(dpexp_home: Path, uri: str) -> None:
    several = [drive("finish", steps=20, wait_s=100) for _ in range(4)]
    for driven in several:
        assert driven.delivery()["complete"]
        assert driven.over() == 0
        assert len(delivered_steps(uri, driven.run_id)) == 20
    assert sorted(path.name for path in dpexp_home.glob("mlflow.db.*")) == ["mlflow.db.lock"]


def test_kills_at_random_moments_break_nothing(dpexp_home: Path, uri: str) -> None:
    """The short form of ``experiments/tracking_faults``: main, uploader or both, at any moment."""
    chance = random.Random(0)
    several = [drive("finish", steps=200, pause_s=0.05, wait_s=0.2) for _ in range(5)]
    for driven in several:
        time.sleep(chance.uniform(0, 0.7))
        either, other = driven.process.pid, driven.uploader
        for victim in chance.choice([[either], [other], [other, either]]):
            os.kill(victim, signal.SIGKILL)
    for driven in several:
        driven.over()
    assert script("runs.py", "reap").returncode == 0
    assert script("runs.py", "sync").returncode == 0
    runs = sorted((dpexp_home / "runs").iterdir())
    assert len(runs) == 5
    for folder in runs:
        record = fold(folder / JOURNAL)
        assert all("cut off" in damage for damage in record.damage)
        assert delivered_steps(uri, folder.name) == record.steps["loss"]
        assert everything(uri, folder.name)["status"] == record.status.upper() != "RUNNING"


def test_a_store_that_cannot_be_used_leaves_the_journal(dpexp_home: Path) -> None:
    message = broken_store(dpexp_home / "mlflow.db", "garbage")
    driven = drive("finish", steps=20)
    delivery = driven.delivery()
    assert driven.over() == 3
    assert message in delivery["message"]
    assert f"python scripts/runs.py sync {driven.run_id}" in delivery["message"]
    assert len(load(dpexp_home / "runs" / driven.run_id).steps["loss"]) == 20
    synced = script("runs.py", "sync")
    assert synced.returncode == 3
    assert message in synced.stderr
    assert "Traceback" not in synced.stderr


@pytest.mark.parametrize("damage", ["garbage", "other", "newer", "older", "directory"])
def test_a_store_that_cannot_be_used_is_told_apart_and_left_alone(dpexp_home: Path, damage: str) -> None:
    path = dpexp_home / "mlflow.db"
    message = broken_store(path, damage)
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(StoreError) as raised:
        Store.of(dpexp_home).open()
    assert message in str(raised.value)
    assert (path.read_bytes() if path.is_file() else b"") == before


def broken_store(path: Path, damage: str) -> str:
    """Put something there that is no usable store; returns what is to be said of it."""
    if damage == "directory":
        path.mkdir()
        return "is not a file"
    if damage == "garbage":
        path.write_bytes(os.urandom(8192))
        return "file is not a database"
    connection = sqlite3.connect(path)
    if damage == "other":
        connection.execute("CREATE TABLE recipes (name)")
    else:
        for table in ("runs (a)", "metrics (a)", "alembic_version (version_num)"):
            connection.execute(f"CREATE TABLE {table}")
        revision = "ffffffffffff" if damage == "newer" else "451aebb31d03"
        connection.execute("INSERT INTO alembic_version VALUES (?)", (revision,))
    connection.commit()
    connection.close()
    return {
        "other": "not a store of MLflow",
        "newer": "was written by a newer MLflow (schema ffffffffffff)",
        "older": "run: mlflow db upgrade sqlite:///",
    }[damage]


def test_a_mistyped_store_directory_is_not_made(dpexp_home: Path, tmp_path: Path) -> None:
    driven = drive("finish", steps=20, MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path}/mistyped/mlflow.db")
    assert f"directory {tmp_path}/mistyped does not exist" in driven.delivery()["message"]
    assert driven.over() == 3
    assert not (tmp_path / "mistyped").exists()
    assert len(load(dpexp_home / "runs" / driven.run_id).steps["loss"]) == 20


def mounted(folder: Path, options: str) -> tuple[str, ...]:
    """A command prefix under which the folder is a file system of its own."""
    folder.mkdir()
    mount = f'mount -t tmpfs -o {options} none "{folder}" && exec "$@"'
    return ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh")


@pytest.mark.parametrize(
    ("options", "message"), [("ro", "is read-only for this user"), ("size=400k", "disk is full")]
)
def test_a_read_only_or_full_store_is_named(
    dpexp_home: Path, tmp_path: Path, options: str, message: str
) -> None:
    folder = tmp_path / "fixed"
    before = mounted(folder, options)
    driven = drive("finish", steps=20, before=before, MLFLOW_TRACKING_URI=f"sqlite:///{folder}/mlflow.db")
    delivery = driven.delivery()
    assert str(folder) in delivery["message"]
    assert message in delivery["message"]
    assert driven.over() == 3
    assert len(load(dpexp_home / "runs" / driven.run_id).steps["loss"]) == 20


def wait_for_steps(home: Path, driven: Driven, count: int) -> None:
    """Until the journal holds so many steps."""
    journal = home / "runs" / driven.run_id / JOURNAL
    while len(fold(journal).steps["loss"]) < count:
        assert driven.process.poll() is None
        time.sleep(0.02)


def wait_for_mlflow(home: Path, driven: Driven) -> None:
    """Until the uploader has made its MLflow run."""
    while not (home / "runs" / driven.run_id / "delivery.json").exists():
        assert driven.process.poll() is None
        time.sleep(0.02)


def test_an_uploader_ends_with_its_run(dpexp_home: Path) -> None:
    driven = drive("finish", steps=10)
    driven.delivery()
    wait_until_gone(driven.uploader)
    assert (dpexp_home / "runs" / driven.run_id / "delivery.json").exists()


HEARD = """
import sys
from dpexp.tracking.worker import Pipe

pipe = Pipe(int(sys.argv[1]))
while not pipe.is_over:
    pipe.wait()
print(pipe.journal)
"""


@pytest.mark.parametrize("held", [True, False], ids=["by a child", "by none"])
def test_what_a_run_said_before_its_death_is_heard_after_it(tmp_path: Path, held: bool) -> None:
    """On a loaded machine the uploader may read its first line when the main process is long dead."""
    dead = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, check=True).stdout.strip()
    journal = tmp_path / JOURNAL
    said = json.dumps({"do": "open", "journal": str(journal), "again": False}) + "\n"
    command = [sys.executable, "-c", HEARD, dead]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as listener:
        assert listener.stdin is not None
        assert listener.stdout is not None
        listener.stdin.write(said)
        listener.stdin.flush()
        if not held:
            listener.stdin.close()
        assert listener.stdout.read() == f"{journal}\n"
