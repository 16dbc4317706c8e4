"""Runs that are killed, or whose server fails: nothing is lost, nothing is delivered twice."""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from command_lines import SCRIPT, Command, script, shared, wait
from mlflow_reader import everything, history, only_run
from servers import Proxy, mlflow_server
from tracking_processes import wait_until, wait_until_gone

from dpexp.record.journal import JOURNAL
from dpexp.record.record import fold

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy warn of each other

MODEL = """
import time
from torch import nn
class Slow(nn.Linear):
    def forward(self, x):
        if self.training:
            time.sleep(0.02)
        return super().forward(x)
def make():
    return Slow(5, 2)
"""
STEPS = 100


def start(folder: Path, **environment: str) -> Command:
    """Start a run of ``STEPS`` steps of 20 ms."""
    (folder / "slow.py").write_text(MODEL)
    words = [
        "single",
        "--model",
        f"{folder}/slow.py:make",
        "--no-check",
        "--warmup",
        "1",
        "--phase-steps",
        "1",
    ]
    words += ["--steps", str(STEPS), "--track-timeout", "2"]
    return shared().start(SCRIPT, *words, **environment)


def losses(uri: str, run_id: str) -> list[float]:
    """The losses in the store, in order; an AssertionError where a step is found twice."""
    points = history(uri, only_run(uri, run_id).info.run_id, "loss")
    assert [step for step, _, _ in points] == list(range(len(points)))
    return [value for _, value, _ in points]


def only_journal(home: Path, steps: int) -> Path:
    """The journal of the only run, as soon as it has so many steps."""
    wait_until(lambda: any(home.glob(f"runs/*/{JOURNAL}")), "a journal")
    (journal,) = home.glob(f"runs/*/{JOURNAL}")
    wait_until(lambda: len(fold(journal).steps.get("loss", [])) >= steps, f"{steps} steps")
    return journal


@pytest.mark.usefixtures("home_with_store")
def test_kills_at_random_moments_break_nothing(dpexp_home: Path, tmp_path: Path) -> None:
    """The run, the process that delivers it, or both, at any moment of the run."""
    rng = random.Random(0)
    for _ in range(5):
        run = start(tmp_path)
        time.sleep(rng.uniform(0.5, 4))  # the moment is what is tested; nothing depends on it
        children = psutil.Process(run.pid).children(recursive=True) if run.poll() is None else []
        delivering = [child.pid for child in children]
        for victim in rng.choice([[run.pid], delivering, [*delivering, run.pid]]):
            os.kill(victim, signal.SIGKILL)
        wait(run)
        for process in delivering:
            wait_until_gone(process)
    assert script("runs.py", "reap").returncode == 0
    assert script("runs.py", "sync").returncode == 0
    uri = f"sqlite:///{dpexp_home / 'mlflow.db'}"
    runs = sorted((dpexp_home / "runs").iterdir())
    assert len(runs) > 1
    for folder in runs:
        record = fold(folder / JOURNAL)
        assert losses(uri, folder.name) == record.steps.get("loss", [])
        assert everything(uri, folder.name)["status"] == record.status.upper() != "RUNNING"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """An MLflow server for all tests of this file, which use different runs."""
    folder = tmp_path_factory.mktemp("server")
    with mlflow_server(f"sqlite:///{folder / 'mlflow.db'}", folder / "artifacts") as port:
        yield port


@pytest.mark.parametrize("fault", ["500", "hang", "reset"])
def test_a_server_that_fails_in_the_middle_of_a_run_costs_it_only_the_timeout(
    dpexp_home: Path, tmp_path: Path, server: int, fault: str
) -> None:
    with Proxy(server) as proxy:
        run = start(tmp_path, MLFLOW_TRACKING_URI=proxy.address)
        journal = only_journal(dpexp_home, steps=10)
        proxy.fault = fault
        _, messages = wait(run)
        assert run.returncode == 3
        run_id = journal.parent.name
        assert f"runs.py sync {run_id}" in messages
        record = fold(journal)
        assert (record.status, len(record.steps["loss"])) == ("finished", STEPS)
        proxy.fault = ""
        synced = script("runs.py", "sync", MLFLOW_TRACKING_URI=proxy.address)
        assert synced.returncode == 0, synced.stderr
        assert losses(proxy.address, run_id) == record.steps["loss"]
        assert everything(proxy.address, run_id)["status"] == "FINISHED"
