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
folder, last = os.environ["TMPDIR"], sys.argv[1]
def kill(event, arguments):
    if event == "open" and str(arguments[0]).startswith(folder) and set(arguments[1] or "") & set("wx"):
        name = os.path.relpath(arguments[0], folder)
        print(name, flush=True)
        if os.path.basename(name) == last:
            os.kill(os.getpid(), signal.SIGKILL)
sys.argv = ["runs.py", "sync", "last", "--again"]
sys.addaudithook(kill)
runpy.run_path("scripts/runs.py", run_name="__main__")
"""
"""``runs.py sync last --again``, killed when it opens a file of this name in the temporary directory."""


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
    opened = [line for line in python("-c", SYNC, "none").stdout.splitlines() if line.startswith("dpexp-")]
    assert any("/tmp" in name for name in opened), opened  # MLflow's
    for name in random.sample(sorted({Path(name).name for name in opened}), 2):
        killed = python("-c", SYNC, name)
        assert killed.returncode == -signal.SIGKILL, (name, opened, killed)
        assert os.listdir(temporary_folder), name
    assert script("runs.py", "reap").returncode == 0
