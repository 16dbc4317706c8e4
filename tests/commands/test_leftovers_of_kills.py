"""Kills at moments drawn at random leave nothing in the temporary directory, once ``reap`` has run."""

import contextlib
import os
import random
import signal
from pathlib import Path

import journals
import psutil
import pytest
from command_lines import ROOT, python, script
from launching import start_forked, until_step, wait, words
from tracking_processes import wait_until, wait_until_gone

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy warn of each other

SYNC = """
import os, runpy, signal, sys
folder, left = os.environ["TMPDIR"], int(sys.argv[1])
def kill(event, arguments):
    global left
    if event == "open" and str(arguments[0]).startswith(folder) and set(arguments[1] or "") & set("wx"):
        print(os.path.relpath(arguments[0], folder), flush=True)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.argv = ["runs.py", "sync", "last", "--again"]
sys.addaudithook(kill)
runpy.run_path("scripts/runs.py", run_name="__main__")
"""
"""``runs.py sync last --again``, killed when it opens a file in the temporary directory, the n-th of all."""


@pytest.mark.parametrize(
    "strategy", [("single",), ("whole", "--virtual", "2"), ("ddp", "--devices", "2")], ids=" ".join
)
@pytest.mark.usefixtures("temporary_folder", "home_with_store")
def test_a_run_that_is_killed_with_all_its_processes_leaves_nothing(
    dpexp_home: Path, tmp_path: Path, strategy: tuple[str, ...]
) -> None:
    step = random.randint(1, 65)
    name, *options = strategy
    run = start_forked(str(ROOT / "scripts/run.py"), *words(tmp_path, name, steps=60), *options)
    until_step(dpexp_home, min(step, 60), run)
    if step > 60:  # while it is delivered
        wait_until(lambda: any(dpexp_home.glob("runs/*/record.json")) or run.poll() is not None, "the end")
    processes = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    wait(run)
    for process in processes:
        wait_until_gone(process.pid)
    reaped = script("runs.py", "reap")
    assert reaped.returncode == 0, f"killed after step {step}: {reaped.stderr}"


@pytest.mark.usefixtures("home_with_store")
def test_a_delivery_that_is_killed_leaves_nothing(dpexp_home: Path, temporary_folder: Path) -> None:
    """Not of dpexp's, and not of MLflow's, which writes each text and trace to a folder of its own."""
    journals.complete(dpexp_home / "runs")
    opened = python("-c", SYNC, 0).stdout.splitlines()
    names = [line for line in opened if line.startswith("dpexp-")]
    assert any("/tmp" in name for name in names), opened  # MLflow's
    for number in random.sample(range(1, len(names) + 1), 2):
        killed = python("-c", SYNC, number)
        assert killed.returncode == -signal.SIGKILL, killed
        assert os.listdir(temporary_folder), number
    assert script("runs.py", "reap").returncode == 0
