"""A sweep whose process dies: its run ends, and no cell runs twice that has finished."""

import os
import signal
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from helpers import swept
from helpers.command_lines import PATIENCE_S, Command, script, wait

from dpexp.record.fold import load_record
from dpexp.study.sweep import Sweep


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.usefixtures("forked_child_runs")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_sweep_that_is_killed_ends_its_run_and_resume_runs_the_rest(
    tmp_path: Path, dpexp_home: Path, number: signal.Signals
) -> None:
    experiment = swept.experiment(tmp_path / "small", "slow")
    process = Command("scripts/sweep.py", str(experiment.folder), "--no-track")
    wait_until((experiment.folder / "started").exists)
    (slow,) = psutil.Process(process.pid).children()
    os.kill(process.pid, number)
    _, error = wait(process)
    assert process.returncode == (143 if number == signal.SIGTERM else -9), error
    wait_until(lambda: not slow.is_running() or slow.status() == psutil.STATUS_ZOMBIE)
    sweep = Sweep.latest(experiment.plan)
    assert sweep is not None
    assert load_record(sweep.folder).status == "killed"
    assert [run.name for run in sweep.missing()][:1] == ["slow.r1"]
    (experiment.folder / "fixed").touch()
    done = script("sweep.py", experiment.folder, "--no-track", "--resume")
    assert done.returncode == 0, done.stderr
    assert sweep.missing() == []
    finished = Counter(run.name for run in swept.runs_of(sweep) if run.status == "finished")
    assert finished == Counter(run.name for run in experiment.plan.order)
