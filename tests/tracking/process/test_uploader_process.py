"""The uploader process: whatever dies or is missing, the run continues, ends, and loses nothing."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import needs
import pytest
from command_lines import ROOT, script
from mlflow_reader import artifact_folder, everything, history, only_run
from tracking_processes import Driver, drive, wait_until

from dpexp.record.journal import JOURNAL, RECORD
from dpexp.record.record import WITHOUT_END, Record, fold
from dpexp.tracking.delivery import ledger
from dpexp.tracking.errors import StoreError
from dpexp.tracking.store.store import Store

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy warn of each other

FIGURES = {"phases.png", "timeline.html", "layout.png", "trace.json"}


@pytest.fixture
def uri(dpexp_home: Path) -> str:
    return f"sqlite:///{dpexp_home / 'mlflow.db'}"


def delivered_steps(uri: str, run_id: str) -> list[float]:
    """The losses in the store, in order; an AssertionError where a step is found twice."""
    points = history(uri, only_run(uri, run_id).info.run_id, "loss")
    assert [step for step, _, _ in points] == list(range(len(points)))
    return [value for _, value, _ in points]


def test_a_run_is_delivered_by_the_time_it_ends(dpexp_home: Path, uri: str) -> None:
    driver = drive("finish")
    delivery = driver.delivery()
    assert delivery["complete"]
    assert driver.wait() == 0
    found = everything(uri, driver.run_id)
    assert found["status"] == "FINISHED"
    assert delivery["mlflow_run_id"] == only_run(uri, driver.run_id).info.run_id
    assert delivery["mlflow_run_id"] in delivery["message"]
    with sqlite3.connect(dpexp_home / "mlflow.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_delivered_later_a_run_is_the_same_as_delivered_live(
    dpexp_home: Path, uri: str, tmp_path: Path
) -> None:
    driver = drive("finish")
    assert driver.delivery()["complete"]
    driver.wait()
    other = tmp_path / "other"
    other.mkdir()
    synced = script("runs.py", "sync", dpexp_home / "runs" / driver.run_id, DPEXP_HOME=str(other))
    assert synced.returncode == 0, synced.stderr
    assert everything(f"sqlite:///{other / 'mlflow.db'}", driver.run_id) == everything(uri, driver.run_id)


def test_no_run_leaves_no_trace(dpexp_home: Path) -> None:
    with pytest.raises(AssertionError, match="did not begin"):
        drive("abandon")
    wait_until(lambda: not any(dpexp_home.iterdir()), f"an empty {dpexp_home}")


@pytest.mark.parametrize(
    ("how", "code", "status"),
    [("kill", -9, "killed"), ("exit", 7, "killed"), ("memory", 1, "killed"), ("raise", 0, "failed")],
)
@pytest.mark.usefixtures("home_with_store")
def test_however_a_run_dies_it_ends_in_mlflow(
    dpexp_home: Path, uri: str, how: str, code: int, status: str
) -> None:
    driver = drive(how)
    assert driver.wait() == code
    record = Record.load(dpexp_home / "runs" / driver.run_id)
    assert record.status == status
    assert record.steps["loss"] == delivered_steps(uri, driver.run_id) == [1 / (1 + i) for i in range(50)]
    found = everything(uri, driver.run_id)
    assert found["status"] == status.upper()
    assert found["times"][1] is not None


@pytest.fixture
def busy_cores() -> Iterator[None]:
    """Other work on both cores."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for other in others:
        other.kill()
        other.wait()


@pytest.mark.usefixtures("home_with_store", "busy_cores")
def test_a_run_that_ends_with_0_is_in_the_store_at_that_moment(dpexp_home: Path, uri: str) -> None:
    for _ in range(4):
        driver = drive("finish")
        assert driver.delivery()["complete"]
        folder = dpexp_home / "runs" / driver.run_id
        assert ledger.is_complete(folder, uri)
        assert {path.name for path in artifact_folder(only_run(uri, driver.run_id)).iterdir()} >= FIGURES


@pytest.mark.usefixtures("home_with_store")
def test_a_killed_uploader_does_not_stop_the_run_and_sync_delivers_the_rest(
    dpexp_home: Path, uri: str
) -> None:
    driver = drive("finish", steps=20, held=True)
    os.kill(driver.uploader, signal.SIGKILL)
    driver.record(80)
    delivery = driver.delivery()
    assert not delivery["complete"]
    assert "was killed by SIGKILL" in delivery["message"]
    assert f"python scripts/runs.py sync {driver.run_id}" in delivery["message"]
    assert driver.wait() == 3
    assert fold(dpexp_home / "runs" / driver.run_id / JOURNAL).status == "finished"
    synced = script("runs.py", "sync")
    assert synced.returncode == 0, synced.stderr
    assert everything(uri, driver.run_id)["status"] == "FINISHED"
    assert len(delivered_steps(uri, driver.run_id)) == 100


@pytest.mark.usefixtures("home_with_store")
def test_reap_closes_a_run_that_died_with_its_uploader(dpexp_home: Path, uri: str) -> None:
    driver = drive("finish", held=True)
    wait_for_points(dpexp_home, uri, driver, 50)
    for process in (driver.uploader, driver.process.pid):
        os.kill(process, signal.SIGKILL)
    driver.wait()
    folder = dpexp_home / "runs" / driver.run_id
    assert not (folder / RECORD).exists()
    assert only_run(uri, driver.run_id).info.status == "RUNNING"
    reaped = script("runs.py", "reap")
    assert reaped.returncode == 0, reaped.stderr
    assert "closed: killed, 50 steps recorded" in reaped.stdout
    record = Record.load(folder)
    assert (record.status, record.error) == ("killed", WITHOUT_END)
    assert everything(uri, driver.run_id)["status"] == "KILLED"
    assert everything(uri, driver.run_id)["tags"]["dpexp.error"].startswith("LostContact: the process that")
    assert len(delivered_steps(uri, driver.run_id)) == 50
    assert script("runs.py", "reap").stdout == "no dead run\n"


@pytest.mark.usefixtures("home_with_store")
def test_a_stopped_uploader_never_holds_up_the_run(dpexp_home: Path, uri: str) -> None:
    driver = drive("finish", steps=0, held=True, wait_s=0.5)
    os.kill(driver.uploader, signal.SIGSTOP)
    driver.record(20000)
    delivery = driver.delivery()
    assert not delivery["complete"]
    assert delivery["message"].startswith("not delivered within 0.5 s")
    assert 0.5 <= delivery["waited_s"] < 60, "the uploader was stopped for good"
    os.kill(driver.uploader, signal.SIGCONT)
    driver.wait()
    assert everything(uri, driver.run_id)["status"] == "FINISHED"
    assert len(delivered_steps(uri, driver.run_id)) == 20000


@pytest.mark.usefixtures("home_with_store")
def test_a_delivery_that_is_sent_just_after_the_timeout_is_reported(dpexp_home: Path, uri: str) -> None:
    driver = drive("late", steps=20, wait_s=0)
    delivery = driver.delivery()
    assert delivery["complete"], delivery
    assert delivery["mlflow_run_id"] == only_run(uri, driver.run_id).info.run_id
    assert driver.wait() == 0


def test_whatever_ends_a_delivery_is_reported(dpexp_home: Path) -> None:
    driver = drive("unlockable", steps=20)
    delivery = driver.delivery()
    assert not delivery["complete"]
    assert delivery["message"].startswith("not delivered: "), delivery
    assert ".delivery.lock" in delivery["message"]
    assert f"python scripts/runs.py sync {driver.run_id}" in delivery["message"]
    assert driver.wait() == 3


def test_first_runs_at_once_share_one_new_store(dpexp_home: Path, uri: str) -> None:
    drivers = [drive("finish", steps=20) for _ in range(4)]
    for driver in drivers:
        assert driver.delivery()["complete"]
        assert driver.wait() == 0
        assert len(delivered_steps(uri, driver.run_id)) == 20
    assert sorted(path.name for path in dpexp_home.glob("mlflow.db.*")) == ["mlflow.db.lock"]


def test_a_store_that_cannot_be_used_leaves_the_journal(dpexp_home: Path) -> None:
    message = broken_store(dpexp_home / "mlflow.db", "garbage")
    driver = drive("finish", steps=20)
    delivery = driver.delivery()
    assert driver.wait() == 3
    assert message in delivery["message"]
    assert f"python scripts/runs.py sync {driver.run_id}" in delivery["message"]
    assert len(Record.load(dpexp_home / "runs" / driver.run_id).steps["loss"]) == 20
    synced = script("runs.py", "sync")
    assert synced.returncode == 3
    assert message in synced.stderr
    assert "Traceback" not in synced.stderr


@pytest.mark.parametrize("damage", ["garbage", "other", "newer", "older", "directory"])
def test_a_store_that_cannot_be_used_is_named_and_unchanged(dpexp_home: Path, damage: str) -> None:
    path = dpexp_home / "mlflow.db"
    message = broken_store(path, damage)
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(StoreError) as raised:
        Store.from_environment(dpexp_home).open()
    assert message in str(raised.value)
    assert (path.read_bytes() if path.is_file() else b"") == before


def broken_store(path: Path, damage: str) -> str:
    """Write something that is not a usable store; returns what the error must name."""
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
        "older": "run: mlflow db upgrade 'sqlite:///",
    }[damage]


def test_a_mistyped_store_directory_is_not_created(dpexp_home: Path, tmp_path: Path) -> None:
    driver = drive("finish", steps=20, MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path}/mistyped/mlflow.db")
    assert f"directory {tmp_path}/mistyped does not exist" in driver.delivery()["message"]
    assert driver.wait() == 3
    assert not (tmp_path / "mistyped").exists()
    assert len(Record.load(dpexp_home / "runs" / driver.run_id).steps["loss"]) == 20


@pytest.mark.parametrize(
    ("options", "message"), [("ro", "is read-only for this user"), ("size=400k", "disk is full")]
)
def test_a_read_only_or_full_store_is_named(
    dpexp_home: Path, tmp_path: Path, options: str, message: str
) -> None:
    folder = tmp_path / "fixed"
    before = needs.disk(folder, options)
    driver = drive("finish", steps=20, before=before, MLFLOW_TRACKING_URI=f"sqlite:///{folder}/mlflow.db")
    delivery = driver.delivery()
    assert str(folder) in delivery["message"]
    assert message in delivery["message"]
    assert driver.wait() == 3
    assert len(Record.load(dpexp_home / "runs" / driver.run_id).steps["loss"]) == 20


def wait_for_points(home: Path, uri: str, driver: Driver, steps: int) -> None:
    """Wait until the store has the losses of so many steps."""
    ledger = home / "runs" / driver.run_id / "delivery.json"
    wait_until(ledger.exists, "an MLflow run")
    wait_until(lambda: len(delivered_steps(uri, driver.run_id)) == steps, f"{steps} steps in MLflow")


READER = """
import sys
from dpexp.tracking.process.uploader_process import CommandPipe

pipe = CommandPipe(int(sys.argv[1]))
while not pipe.closed:
    pipe.wait()
print(pipe.journal)
"""


@pytest.mark.parametrize("held_open", [True, False], ids=["pipe held by a child", "pipe closed"])
def test_commands_are_read_after_the_death_of_the_main_process(tmp_path: Path, held_open: bool) -> None:
    """On a busy machine the uploader process may read its first command after the main process died."""
    dead = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, check=True).stdout.strip()
    journal = tmp_path / JOURNAL
    command = json.dumps({"do": "open", "journal": str(journal), "again": False}) + "\n"
    arguments = [sys.executable, "-c", READER, dead]
    with subprocess.Popen(
        arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        reader.stdin.write(command)
        reader.stdin.flush()
        if not held_open:
            reader.stdin.close()
        assert reader.stdout.read() == f"{journal}\n"


@pytest.mark.usefixtures("home_with_store")
@pytest.mark.parametrize("enabled", [True, False])
def test_mlflows_monitor_logs_the_machine_unless_it_is_disabled(
    dpexp_home: Path, uri: str, enabled: bool
) -> None:
    variables = {} if enabled else {"MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING": "false"}
    interval = "0.1"
    driver = drive("finish", held=True, MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL=interval, **variables)
    wait_for_points(dpexp_home, uri, driver, 50)

    def is_sampled() -> bool:
        return "system/cpu_utilization_percentage" in only_run(uri, driver.run_id).data.metrics

    if enabled:
        wait_until(is_sampled, "a sample of the machine")
    assert driver.delivery()["complete"]
    driver.wait()
    assert is_sampled() == enabled
