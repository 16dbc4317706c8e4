"""A sweep whose process dies: its run ends or is waited for, and no cell runs twice that has finished."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import swept
from command_lines import PATIENCE_S, script, shared, wait

from dpexp.record.journal.fold import load
from dpexp.record.journal.journal import JOURNAL
from dpexp.record.runs.index import folders
from dpexp.study.experiment.experiment import Experiment
from dpexp.study.experiment.records import PlannedRun, read_record
from dpexp.study.sweep.cells_lock import CELLS_LOCK
from dpexp.study.sweep.sweep import Sweep, plan_runs


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    """Cells quick, single, and one that waits until the file «mended» exists."""
    return swept.experiment(tmp_path / "small", "slow")


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def the_sweep(experiment: Experiment) -> Sweep:
    found = Sweep.latest(experiment)
    assert found is not None
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_sweep_that_is_killed_ends_its_run_and_resume_runs_the_rest(
    experiment: Experiment, number: signal.Signals
) -> None:
    process = shared().start("scripts/sweep.py", str(experiment.folder), "--no-track")
    wait_until(lambda: "slow" in swept.started(experiment))
    (slow,) = psutil.Process(process.pid).children()
    os.kill(process.pid, number)
    _, error = wait(process)
    assert process.returncode == (143 if number == signal.SIGTERM else -9), error
    wait_until(lambda: not slow.is_running() or slow.status() == psutil.STATUS_ZOMBIE)
    sweep = the_sweep(experiment)
    assert load(sweep.folder).status == "killed"
    before = swept.started(experiment)
    (experiment.folder / "mended").touch()
    done = script("sweep.py", experiment.folder, "--no-track", "--resume")
    assert done.returncode == 0, done.stderr
    assert sweep.missing(plan_runs(experiment)) == []
    assert swept.started(experiment).count("slow") == 2 + before.count("slow")
    assert swept.started(experiment).count("quick") == 2
    children = [load(folder) for folder in folders(sweep.folder.parent) if folder != sweep.folder]
    assert sorted(child.name for child in children) == ["single.r1", "single.r2"]
    assert not (sweep.folder / CELLS_LOCK).exists()
    cut_off_the_end(sweep.folder / JOURNAL)  # as if it had been killed after its last run
    assert load(sweep.folder).status == "killed"
    assert script("sweep.py", experiment.folder, "--no-track", "--resume").returncode == 0
    assert load(sweep.folder).status == "finished"
    assert swept.started(experiment).count("quick") == 2


def cut_off_the_end(journal: Path) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(line for line in lines if b'"status":"finished"' not in line))


def test_a_run_that_goes_on_is_waited_for(experiment: Experiment) -> None:
    """As where a killed sweep cannot tell its run, or the run takes long to end."""
    sweep = Sweep.new(experiment)
    sweep.records.mkdir(parents=True)
    with open(sweep.folder / CELLS_LOCK, "wb") as held:  # by a sweep that is killed
        fcntl.flock(held, fcntl.LOCK_EX)
        command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        left = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[held.fileno()])
    asks = "import sys; from pathlib import Path; from dpexp.study.sweep.cells_lock import cells_lock\n"
    asks += f"with cells_lock(Path({str(sweep.folder)!r})): print('has it', flush=True)"
    waiting = subprocess.Popen(
        [sys.executable, "-c", asks],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(swept.ROOT)},
    )
    assert waiting.stderr is not None
    assert waiting.stderr.readline() == "a run of this sweep is still at work: waiting for its end\n"
    assert waiting.poll() is None
    left.communicate()
    assert waiting.communicate(timeout=PATIENCE_S)[0] == "has it\n"


@pytest.mark.usefixtures("forked_child_runs")
@pytest.mark.parametrize("left", ["nothing", "{}"])
def test_a_run_that_finished_after_its_sweep_died_is_not_run_again(experiment: Experiment, left: str) -> None:
    sweep, planned = Sweep.new(experiment), [PlannedRun("single", 1)]
    sweep.run(planned, lambda completed: None)
    path = sweep.records / "single.r1.json"
    before = read_record(path)
    path.unlink()
    if left != "nothing":
        path.write_text(left)
    again = the_sweep(experiment)
    assert again.missing(planned) == []
    assert read_record(path) == before
