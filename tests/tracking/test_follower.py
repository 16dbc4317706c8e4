"""The follower: whatever dies or is missing, the run continues, ends, and loses nothing."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import journals
from helpers.command_lines import script
from helpers.mlflow_reader import artifact_folder, everything, losses, only_run
from helpers.tracking_processes import drive, wait_until

from dpexp.record.fold import fold, load_record
from dpexp.record.journal import JOURNAL
from dpexp.tracking import ledger
from dpexp.tracking.follow import Follower

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy warn of each other

FIGURES = {"phases.png", "timeline.html", "layout.png", "trace.json"}


@pytest.fixture
def uri(dpexp_home: Path) -> str:
    return f"sqlite:///{dpexp_home / 'mlflow.db'}"


def test_a_run_that_ends_with_0_is_in_the_store_and_delivered_later_it_is_the_same(
    dpexp_home: Path, uri: str, tmp_path: Path
) -> None:
    driver = drive("finish")
    delivery, folder = driver.delivery(), dpexp_home / "runs" / driver.run_id
    assert delivery["complete"]
    assert ledger.state(folder, uri) == "yes"
    assert {path.name for path in artifact_folder(only_run(uri, driver.run_id)).iterdir()} >= FIGURES
    assert only_run(uri, driver.run_id).info.run_id in delivery["message"]
    assert driver.wait() == 0
    with sqlite3.connect(dpexp_home / "mlflow.db") as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
    (tmp_path / "other").mkdir()
    assert script("runs.py", "sync", folder, DPEXP_HOME=str(tmp_path / "other")).returncode == 0
    live = everything(uri, driver.run_id)
    assert live["status"] == "FINISHED"
    assert everything(f"sqlite:///{tmp_path / 'other' / 'mlflow.db'}", driver.run_id) == live


@pytest.mark.parametrize(("how", "code", "status"), [("kill", -9, "killed"), ("raise", 0, "failed")])
@pytest.mark.usefixtures("home_with_store")
def test_however_a_run_dies_it_ends_in_mlflow(
    dpexp_home: Path, uri: str, how: str, code: int, status: str
) -> None:
    driver = drive(how)
    assert driver.wait() == code
    record = load_record(dpexp_home / "runs" / driver.run_id)
    assert record.status == status
    assert record.steps["loss"] == losses(uri, driver.run_id) == [1 / (1 + i) for i in range(50)]
    found = everything(uri, driver.run_id)
    assert found["status"] == status.upper()
    assert found["times"][1] is not None


@pytest.mark.usefixtures("home_with_store")
def test_a_follower_works_when_the_machine_is_idle_and_killed_it_leaves_the_run_to_sync(
    dpexp_home: Path, uri: str
) -> None:
    driver = drive("finish", held=True, MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL="0.1")
    wait_until((dpexp_home / "runs" / driver.run_id / ledger.LEDGER).exists, "an MLflow run")
    sample = "system/cpu_utilization_percentage"
    wait_until(lambda: sample in only_run(uri, driver.run_id).data.metrics, "a sample of the machine")
    threads = {int(path.name) for path in Path(f"/proc/{driver.follower}/task").iterdir()}
    policies = {os.sched_getscheduler(thread) for thread in threads - {driver.follower}}
    assert policies == {os.SCHED_IDLE}, "but for the thread that waits for the end of the run"
    os.kill(driver.follower, signal.SIGKILL)
    driver.record(50)
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
def test_a_stopped_follower_never_holds_up_the_run(dpexp_home: Path, uri: str) -> None:
    driver = drive("finish", steps=0, held=True, wait_s=0.5)
    os.kill(driver.follower, signal.SIGSTOP)
    driver.record(2000)
    delivery = driver.delivery()
    assert not delivery["complete"]
    assert delivery["message"].startswith("not delivered: no progress for 0.5 s while ")
    assert "the run is safe on disk" in delivery["message"]
    assert delivery["waited_s"] >= 0.5
    os.kill(driver.follower, signal.SIGCONT)
    driver.wait()
    assert everything(uri, driver.run_id)["status"] == "FINISHED"
    assert len(losses(uri, driver.run_id)) == 2000


UNTIL_EVENT = """
import sys, time
from pathlib import Path
while not Path(sys.argv[1]).exists():
    {}
"""
"""A process that ends well after an event, and until then does what is to be filled in."""


@pytest.mark.parametrize(
    ("does", "sends"),
    [("sum(range(100_000))", False), ("time.sleep(0.05)", True)],
    ids=["imports", "sends"],
)
def test_a_delivery_that_makes_progress_is_awaited_beyond_the_timeout(
    runs: Path, tmp_path: Path, does: str, sends: bool
) -> None:
    folder, event, said = journals.complete(runs).parent, tmp_path / "event", []
    command = [sys.executable, "-c", UNTIL_EVENT.format(does), str(event)]

    def say(text: str) -> None:
        said.append(text)
        event.touch()

    def is_interrupted() -> bool:
        if sends:
            ledger.write(folder, "a store", ledger.Entry())
        return False

    with subprocess.Popen(command) as process:
        delivery = Follower(process, folder).wait(2.0, is_interrupted, say)
    assert delivery.complete, delivery.message
    (text,) = said
    assert text.endswith("the run is safe on disk")


@pytest.mark.parametrize("count", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_first_runs_at_once_share_one_new_store(dpexp_home: Path, uri: str, count: int) -> None:
    drivers = [drive("finish", steps=20, wait_s=10) for _ in range(count)]
    for driver in drivers:
        assert driver.delivery()["complete"]
        assert driver.wait() == 0
        assert len(losses(uri, driver.run_id)) == 20
    assert sorted(path.name for path in dpexp_home.glob("mlflow.db.*")) == ["mlflow.db.lock"]
