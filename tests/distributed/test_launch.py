"""Launch: from where it starts ranks, and how they end or start again."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
from helpers.launching import (
    SCRIPT,
    ranks_of,
    record,
    run,
    start,
    start_forked,
    until_step,
    wait,
    words,
)
from helpers.servers import free_port
from helpers.tracking_processes import wait_until_gone

from dpexp.distributed.job import Job
from dpexp.distributed.launch import launch
from dpexp.record.fold import load_record

SHORT = ("--steps", "2", "--warmup", "0", "--phase-steps", "1", "--json")
MODEL = """
import os, signal, torch
from pathlib import Path
from torch import nn
class Model(nn.Linear):
    done, ends = 0, None
    def example(self, samples, generator):
        return torch.randn(samples, 5, generator=generator), torch.zeros(samples, 2)
    def forward(self, x):
        self.done += self.training and torch.is_grad_enabled()
        if self.done == 8 and self.ends:
            self.ends()
        return super().forward(x)
def make():
    return Model(5, 2)
def kill():
    os.kill(os.getpid(), signal.SIGKILL)
def kill_once(mark=Path(__file__).with_name("killed")):
    if not mark.exists():
        mark.touch()
        kill()
def ending(how, rank):
    model, ways = make(), {"kill": kill, "kill_once": kill_once}
    model.ends = ways[how] if os.environ.get("RANK") == str(rank) else None
    return model
"""


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with a user's model, and with names of ours and of libraries that break imports."""
    folder = tmp_path / "hostile"
    for name in ("dpexp", "scripts", "torch", "mlflow", "typer"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise ImportError('{name} of the working directory')")
    for name in ("random", "json", "run", "conftest"):
        (folder / f"{name}.py").write_text(f"raise ImportError('{name} of the working directory')")
    (folder / "mine.py").write_text(MODEL)
    return folder


@pytest.mark.usefixtures("temporary_folder")
def test_ranks_start_from_any_working_directory(hostile: Path) -> None:
    """``dpexp`` is found through the checkout, and the user's model through the working directory."""
    words = ("--devices", "2", "--model", "mine:make", *SHORT, "--no-track")
    done = wait(start(SCRIPT, "fsdp", *words, folder=hostile))
    found = record(done)
    assert found["verification"]["passed"] is True
    assert len(found["devices"]["ranks"]) == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the agent leaves logs open
def test_a_launch_names_the_rank_that_ended_and_leaves_the_process_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    before = dict(os.environ), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    program = "import os, sys; sys.stderr.write('out of luck'); sys.exit(3 * int(os.environ['RANK']))"
    results, error = launch(Job({}, True, []), 2, program, "run")
    assert results == []
    assert re.fullmatch(r"rank 1 on host \S+ \(process \d+\) ended with code 3: out of luck", str(error))
    assert (dict(os.environ), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


# --- how ranks end ---


def test_two_signals_end_the_ranks_with_one_message(dpexp_home: Path, tmp_path: Path) -> None:
    process = start_forked(SCRIPT, *words(tmp_path), "--devices", "2", "--no-track")
    until_step(dpexp_home, 1, process)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    ended = wait(process)
    message = {130: "interrupted; what was measured is recorded", 143: "ended by SIGTERM"}[ended.returncode]
    assert ended.stderr == f"error: {message}\n"
    (folder,) = (dpexp_home / "runs").iterdir()
    ended_record = json.loads((folder / "record.json").read_bytes())
    assert (ended_record["status"], ended_record["damage"]) == ("killed", [])


def test_a_rank_that_is_killed_ends_all(dpexp_home: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    model = f"{tmp_path}/mine.py:ending:how=kill,rank=1"
    steps = ("--steps", "20", "--warmup", "1", "--phase-steps", "0", "--no-check", "--quiet")
    ranks = ("--devices", "2", "--comm-timeout", "6")
    done = run("ddp", "--model", model, *steps, *ranks)
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    assert re.match(r"error: rank 1 on host \S+ \(process \d+\) was killed by SIGKILL", line), line
    (folder,) = (dpexp_home / "runs").iterdir()
    found = load_record(folder)
    assert (found.status, found.damage) == ("killed", [])
    assert found.error is not None
    assert found.error["type"] == "LostContact"


def test_ranks_end_with_their_launcher(dpexp_home: Path, tmp_path: Path) -> None:
    process = start_forked(SCRIPT, *words(tmp_path), "--devices", "2", "--no-track")
    until_step(dpexp_home, 12, process)
    ranks = ranks_of(process)
    assert len(ranks) == 2
    process.kill()
    process.communicate()
    for pid in ranks.values():
        wait_until_gone(pid)
    assert load_record(next(dpexp_home.glob("runs/*"))).status == "killed"


def test_a_program_that_torchrun_starts_again_has_a_record_of_its_own(
    dpexp_home: Path, tmp_path: Path
) -> None:
    """Without ``--standalone`` the store still has the addresses and the reports of the ranks before."""
    (tmp_path / "mine.py").write_text(MODEL)
    agent = ("--nproc-per-node", "2", "--max-restarts", "1", "--master-port", str(free_port()))
    model = ("--model", f"{tmp_path}/mine.py:ending:how=kill_once,rank=1", "--no-check", *SHORT)
    steps = ("--steps", "20", "--no-track")
    done = wait(start_forked("-P", "-m", "torch.distributed.run", *agent, SCRIPT, "ddp", *model, *steps))
    assert done.returncode == 0, done.stderr
    found = sorted(map(load_record, (dpexp_home / "runs").iterdir()), key=lambda each: each.started)
    assert [each.status for each in found] == ["killed", "finished"]
    assert len(found[1].steps["loss"]) == 20
