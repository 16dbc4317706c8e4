"""The follower: whatever dies or is missing, the run continues, ends, and loses nothing."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_lines import script
from mlflow_reader import artifact_folder, everything, losses, only_run
from servers import Proxy, mlflow_server
from tracking_processes import Driver, drive, wait_until

from dpexp.record.journal import JOURNAL, RECORD
from dpexp.record.record import WITHOUT_END, Record, fold
from dpexp.tracking import ledger

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy warn of each other

FIGURES = {"phases.png", "timeline.html", "layout.png", "trace.json"}


@pytest.fixture
def uri(dpexp_home: Path) -> str:
    return f"sqlite:///{dpexp_home / 'mlflow.db'}"


def wait_for_points(home: Path, uri: str, driver: Driver, steps: int) -> None:
    """Wait until the store has the losses of so many steps."""
    wait_until((home / "runs" / driver.run_id / ledger.LEDGER).exists, "an MLflow run")
    wait_until(lambda: len(losses(uri, driver.run_id)) == steps, f"{steps} steps in MLflow")


def test_delivered_later_a_run_is_the_same_as_delivered_live(
    dpexp_home: Path, uri: str, tmp_path: Path
) -> None:
    driver = drive("finish")
    delivery = driver.delivery()
    assert (delivery["complete"], driver.wait()) == (True, 0)
    assert only_run(uri, driver.run_id).info.run_id in delivery["message"]
    with sqlite3.connect(dpexp_home / "mlflow.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
    other = tmp_path / "other"
    other.mkdir()
    synced = script("runs.py", "sync", dpexp_home / "runs" / driver.run_id, DPEXP_HOME=str(other))
    assert synced.returncode == 0, synced.stderr
    live = everything(uri, driver.run_id)
    assert live["status"] == "FINISHED"
    assert everything(f"sqlite:///{other / 'mlflow.db'}", driver.run_id) == live


def test_a_run_that_does_not_begin_leaves_no_trace(dpexp_home: Path) -> None:
    with pytest.raises(AssertionError, match="did not begin"):
        drive("refuse")
    assert list(dpexp_home.iterdir()) == []


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
    assert record.steps["loss"] == losses(uri, driver.run_id) == [1 / (1 + i) for i in range(50)]
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
        assert ledger.state(dpexp_home / "runs" / driver.run_id, uri) == "yes"
        assert {path.name for path in artifact_folder(only_run(uri, driver.run_id)).iterdir()} >= FIGURES


@pytest.mark.usefixtures("home_with_store")
def test_a_killed_follower_does_not_stop_the_run_and_sync_delivers_the_rest(
    dpexp_home: Path, uri: str
) -> None:
    driver = drive("finish", steps=20, held=True)
    os.kill(driver.follower, signal.SIGKILL)
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
    assert len(losses(uri, driver.run_id)) == 100


@pytest.mark.usefixtures("home_with_store")
def test_sync_closes_a_run_that_died_with_its_follower(dpexp_home: Path, uri: str) -> None:
    driver = drive("finish", held=True)
    wait_for_points(dpexp_home, uri, driver, 50)
    for process in (driver.follower, driver.process.pid):
        os.kill(process, signal.SIGKILL)
    driver.wait()
    folder = dpexp_home / "runs" / driver.run_id
    assert not (folder / RECORD).exists()
    assert only_run(uri, driver.run_id).info.status == "RUNNING"
    synced = script("runs.py", "sync")
    assert synced.returncode == 0, synced.stderr
    assert "closed: killed, 50 steps recorded" in synced.stdout
    record = Record.load(folder)
    assert (record.status, record.error) == ("killed", WITHOUT_END)
    found = everything(uri, driver.run_id)
    assert found["status"] == "KILLED"
    assert found["tags"]["dpexp.error"].startswith("LostContact: the process that")
    assert len(losses(uri, driver.run_id)) == 50


@pytest.mark.usefixtures("home_with_store")
def test_a_stopped_follower_never_holds_up_the_run(dpexp_home: Path, uri: str) -> None:
    driver = drive("finish", steps=0, held=True, wait_s=0.5)
    os.kill(driver.follower, signal.SIGSTOP)
    driver.record(20000)
    delivery = driver.delivery()
    assert not delivery["complete"]
    assert delivery["message"].startswith("not delivered within 0.5 s")
    assert 0.5 <= delivery["waited_s"] < 60, "the follower was stopped for good"
    os.kill(driver.follower, signal.SIGCONT)
    driver.wait()
    assert everything(uri, driver.run_id)["status"] == "FINISHED"
    assert len(losses(uri, driver.run_id)) == 20000


def test_first_runs_at_once_share_one_new_store(dpexp_home: Path, uri: str) -> None:
    drivers = [drive("finish", steps=20) for _ in range(4)]
    for driver in drivers:
        assert driver.delivery()["complete"]
        assert driver.wait() == 0
        assert len(losses(uri, driver.run_id)) == 20
    assert sorted(path.name for path in dpexp_home.glob("mlflow.db.*")) == ["mlflow.db.lock"]


@pytest.mark.usefixtures("home_with_store")
@pytest.mark.parametrize("enabled", [True, False])
def test_beside_a_run_it_works_when_the_machine_is_idle_and_samples_the_machine_unless_that_is_disabled(
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
    threads = [int(path.name) for path in Path(f"/proc/{driver.follower}/task").iterdir()]
    policies = {thread: os.sched_getscheduler(thread) for thread in threads}
    assert policies.pop(driver.follower) == os.SCHED_OTHER, (
        "it waits for the end of the run, and delivers then"
    )
    assert len(policies) == 1 + enabled
    assert set(policies.values()) == {os.SCHED_IDLE}
    assert driver.delivery()["complete"]
    driver.wait()
    assert is_sampled() == enabled


@pytest.mark.usefixtures("home_with_store")
def test_what_does_not_come_to_an_end_beside_the_run_is_begun_again_at_its_end(
    dpexp_home: Path, tmp_path: Path
) -> None:
    """Here it waits for an answer; on a busy machine, for its turn."""
    store = f"sqlite:///{dpexp_home / 'mlflow.db'}"
    patient = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "3600"}
    with mlflow_server(store, tmp_path / "artifacts") as port, Proxy(port) as proxy:
        driver = drive("finish", held=True, MLFLOW_TRACKING_URI=proxy.address, **patient)
        wait_until((dpexp_home / "runs" / driver.run_id / ledger.LEDGER).exists, "an MLflow run")
        proxy.fault = "hang"
        driver.record(50)
        wait_until(lambda: proxy.refused > 0, "a request that gets no answer")
        proxy.fault = ""
        assert driver.delivery()["complete"]
        assert driver.wait() == 0
        assert len(losses(proxy.address, driver.run_id)) == 100
