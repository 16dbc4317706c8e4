"""Snapshots: killed ranks, preempted runs and damaged files lose no step and change no bit."""

import json
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import layouts
import pytest
import torch
from command_lines import PATIENCE_S
from launching import (
    SCRIPT,
    STEPS,
    ranks_of,
    record,
    run,
    start_forked,
    torchrun,
    until_step,
    wait,
    words,
)
from servers import free_port
from torch import nn
from tracking_processes import wait_until_gone

import dpexp
from dpexp.config.errors import ConfigError, Terminated
from dpexp.config.run_config import RunConfig
from dpexp.config.strategy_options import LaunchOptions
from dpexp.config.strategy_registry import STRATEGY_OPTIONS
from dpexp.engine.prepare_ranks import check_same_computation
from dpexp.record.consistency.contradictions import contradictions
from dpexp.record.journal.fold import fold, load
from dpexp.record.record import Record
from dpexp.report.commands import command_of


def record_of_the_run(home: Path) -> Record:
    (folder,) = (home / "runs").iterdir()
    return load(folder)


@pytest.mark.parametrize(
    ("strategy", "world", "victim", "step", "optimizer"),
    [
        ("ddp", 2, 0, 12, "adamw"),
        ("ddp", 3, 2, 31, "sgd"),
        ("ddp", 4, 1, 17, "momentum --accumulate 5"),
        ("fsdp", 2, 1, 22, "adam"),
    ],
)
def test_a_killed_rank_changes_no_bit(
    dpexp_home: Path, tmp_path: Path, strategy: str, world: int, victim: int, step: int, optimizer: str
) -> None:
    arguments = [*words(tmp_path, strategy), "--devices", str(world), "--optimizer", *optimizer.split()]
    process = start_forked(SCRIPT, *arguments, "--no-track")
    interrupted = until_step(dpexp_home, step, process)
    os.kill(ranks_of(process)[victim], signal.SIGKILL)
    found = record(wait(process))
    assert found["run_id"] == interrupted.run_id
    assert record_of_the_run(dpexp_home).status == "finished"
    assert found["steps"]["samples"] == [30, 30, 30, 10] * (STEPS // 4)
    undisturbed = record(run(*arguments))
    assert found["digest"] == undisturbed["digest"]
    assert found["steps"]["loss"] == undisturbed["steps"]["loss"]
    assert not list(dpexp_home.glob("snapshots/*"))


@pytest.mark.usefixtures("home_with_store")
def test_a_preempted_run_resumes_with_another_world_size_as_one_mlflow_run(
    dpexp_home: Path, tmp_path: Path
) -> None:
    """It stops between two steps of the optimizer: a snapshot has no accumulated gradients.

    MLflow changes no param, and ``devices`` is one: a new run replaces the one of before, which is deleted.
    """
    arguments = (*words(tmp_path, every=1000), "--accumulate", "4", "--track-timeout", str(PATIENCE_S))
    process = start_forked(SCRIPT, *arguments, "--devices", "3")
    until_step(dpexp_home, 1, process)
    process.send_signal(signal.SIGTERM)
    stopped = wait(process)
    assert stopped.returncode == 143, stopped.stderr
    stopped_record = json.loads(stopped.stdout)
    assert stopped_record["status"] == "killed"
    done = len(stopped_record["steps"]["loss"])
    assert 1 <= done < STEPS
    assert done % 4 == 0
    resumed = start_forked(SCRIPT, *arguments, "--devices", "2", "--resume", "last")
    found = record(wait(resumed))
    assert found["run_id"] == stopped_record["run_id"]
    assert found["steps"]["samples"] == [30, 30, 30, 10] * (STEPS // 4)
    assert found["steps"]["loss"][:done] == stopped_record["steps"]["loss"]
    assert len(found["devices"]["ranks"]) == 2
    with closing(sqlite3.connect(dpexp_home / "mlflow.db")) as store:
        runs = store.execute("SELECT run_uuid, status FROM runs WHERE lifecycle_stage = 'active'").fetchall()
        ((mlflow_run, status),) = runs
        query = "SELECT step FROM metrics WHERE key = 'loss' AND run_uuid = ? ORDER BY step"
        steps = store.execute(query, (mlflow_run,)).fetchall()
    assert status == "FINISHED"
    assert contradictions(load(dpexp_home / "runs" / found["run_id"])) == []
    assert [step for (step,) in steps] == list(range(STEPS))


def test_ranks_end_with_their_launcher_and_the_run_resumes_from_its_snapshot(
    dpexp_home: Path, tmp_path: Path
) -> None:
    process = start_forked(SCRIPT, *words(tmp_path), "--devices", "2", "--no-track")
    until_step(dpexp_home, 12, process)
    ranks = ranks_of(process)
    assert len(ranks) == 2
    process.kill()
    process.communicate()
    for pid in ranks.values():
        wait_until_gone(pid)
    assert fold(next(dpexp_home.glob("runs/*/journal.jsonl"))).status == "killed"
    found = record(run(*words(tmp_path), "--devices", "2", "--resume", "last"))
    assert found["steps"]["samples"] == [30, 30, 30, 10] * (STEPS // 4)


HALTING = """
import os, signal
from pathlib import Path
from dpexp.models.embeddings import EmbeddingLinear
class Halting(EmbeddingLinear):
    done, mark = 0, Path(__file__).with_name("killed")
    def __init__(self):
        super().__init__(rows=50, dim=4, out=3)
    def forward(self, *inputs):
        self.done += self.training
        if self.done == 12 and os.environ["RANK"] == "1" and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(*inputs)
"""


def test_hybrid_resumes_its_sharded_tables_and_their_optimizer_to_the_bit(tmp_path: Path) -> None:
    (tmp_path / "halting.py").write_text(HALTING)
    where = ("--model", f"{tmp_path}/halting.py:Halting", "--shard-embedding", "--sparse", "--no-check")
    steps = ("--steps", "20", "--warmup", "1", "--phase-steps", "1", "--snapshot-every", "4", "--json")
    words = ("hybrid", *where, *steps, "--optimizer", "rowwise_adagrad")
    killed = torchrun(2, *words, "--pipeline")
    assert killed.returncode != 0
    resumed = record(torchrun(2, *words, "--pipeline", "--resume", "last"))
    undisturbed = record(torchrun(2, *words))
    assert resumed["run_id"] != undisturbed["run_id"]
    assert len(resumed["steps"]["loss"]) == 20
    assert resumed["steps"]["loss"] == undisturbed["steps"]["loss"]
    assert resumed["digest"] == undisturbed["digest"]


class Net(nn.Module):
    """What a step changes beside parameters: statistics, and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.block1 = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3))
        self.block2 = nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.block2(self.block1(inputs))


class TerminatedLoss:
    """Cross entropy; its step number ``last`` gets SIGTERM."""

    def __init__(self, last: int = 0) -> None:
        self.steps, self.last = 0, last

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.steps += outputs.requires_grad
        if self.steps == self.last:
            os.kill(os.getpid(), signal.SIGTERM)
        return nn.functional.cross_entropy(outputs, targets)


IN_ONE_PROCESS: dict[str, dict[str, Any]] = {
    "single": {"devices": "cpu"},
    "whole": {"virtual": 2},
    "block": {"virtual": 2},
    "functional": {"virtual": 2},
    "hybrid": {"virtual": 2, "host": ["block1"]},
    "place": {"virtual": 2, "place": ["block2=cpu:1"]},
    "custom": {"virtual": 2, "layout": f"{layouts.__file__}:replicated"},
}


def test_every_strategy_that_starts_no_ranks_is_resumed_in_this_process() -> None:
    ranks = {name for name, options in STRATEGY_OPTIONS.items() if issubclass(options, LaunchOptions)}
    assert IN_ONE_PROCESS.keys() == STRATEGY_OPTIONS.keys() - (ranks - {"custom"})


@pytest.mark.parametrize("strategy", IN_ONE_PROCESS)
def test_a_terminated_run_resumes_to_the_bit(dpexp_home: Path, strategy: str) -> None:
    torch.manual_seed(0)
    given = {"model": Net(), "data": (torch.randn(40, 6), torch.randint(0, 3, (40,)))}
    short = {"batch_size": 12, "steps": 8, "warmup": 1, "phase_steps": 1, "check": False, "track": False}

    def run_with(loss: TerminatedLoss, **more: Any) -> Record:
        options: dict[str, Any] = given | short | IN_ONE_PROCESS[strategy] | more
        return dpexp.run(strategy, loss=loss, optimizer="adam", quiet=True, **options)

    with pytest.raises(Terminated):
        run_with(TerminatedLoss(last=7))
    stopped = record_of_the_run(dpexp_home)
    assert stopped.status == "killed"
    assert 1 <= len(stopped.steps["loss"]) < 8
    resumed = run_with(TerminatedLoss(), resume="last")
    assert resumed.run_id == stopped.run_id
    undisturbed = run_with(TerminatedLoss())
    assert resumed.steps["loss"] == undisturbed.steps["loss"]
    assert resumed.digest == undisturbed.digest
    assert "--resume" not in command_of(resumed)
    assert not list(dpexp_home.glob("snapshots/*"))


def test_ranks_restart_where_torchrun_keeps_its_store(dpexp_home: Path, tmp_path: Path) -> None:
    """Without ``--standalone`` the store still has the addresses and the reports of the ranks before."""
    (tmp_path / "halting.py").write_text(HALTING)
    options = ("--nproc-per-node", "2", "--max-restarts", "1", "--master-port", str(free_port()))
    model = ("--model", f"{tmp_path}/halting.py:Halting", "--shard-embedding", "--sparse", "--no-check")
    steps = ("--steps", "20", "--warmup", "1", "--phase-steps", "1", "--snapshot-every", "4", "--json")
    agent = ("-P", "-m", "torch.distributed.run", *options)
    done = wait(start_forked(*agent, SCRIPT, "hybrid", *model, *steps, "--no-track"))
    assert len(record(done)["steps"]["loss"]) == 20
    assert record_of_the_run(dpexp_home).status == "finished"


def test_a_run_resumes_only_on_the_samples_with_which_it_began(dpexp_home: Path, tmp_path: Path) -> None:
    text = tmp_path / "book.txt"
    text.write_text("one two three " * 300)
    words = (
        "hybrid",
        "--virtual",
        "1",
        "--data",
        f"text:{text}",
        "--steps",
        "1000000",
        "--no-check",
        "--json",
    )
    process = start_forked(SCRIPT, *words, "--no-track")
    until_step(dpexp_home, 1, process)
    process.send_signal(signal.SIGTERM)
    assert wait(process).returncode == 143
    text.write_text("One two three " * 300)
    refused = run(*words, "--resume", "last")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"--data text:{text} have changed since the run began" in refused.stderr
    assert record_of_the_run(dpexp_home).status == "killed"


def test_a_finished_run_is_said_to_have_no_snapshot(dpexp_home: Path) -> None:
    words = (
        "single",
        "--devices",
        "cpu",
        "--steps",
        "4",
        "--no-check",
        "--no-track",
        "--snapshot-every",
        "2",
    )
    assert run(*words).returncode == 0
    refused = run(*words, "--resume", "last")
    assert refused.returncode == 2
    assert "a run that has finished keeps none" in refused.stderr


def test_an_unknown_run_cannot_be_resumed(dpexp_home: Path) -> None:
    done = run("ddp", "--devices", "1", "--resume", "nothing")
    assert done.returncode == 2
    assert "--resume: there is no run" in done.stderr


def test_a_run_resumes_only_with_options_that_compute_the_same() -> None:
    before = RunConfig("ddp", lr=0.01, devices="2").to_dict()
    check_same_computation(before, RunConfig("ddp", lr=0.01, devices="3"), "abc")
    with pytest.raises(ConfigError, match=r"started with lr 0\.01, found 0\.1"):
        check_same_computation(before, RunConfig("ddp", lr=0.1), "abc")


def test_a_run_that_is_older_than_an_option_resumes_with_its_default() -> None:
    before = RunConfig("ddp").to_dict()
    for option in ("optimizer", "clip_norm", "accumulate"):
        del before[option]
    check_same_computation(before, RunConfig("ddp"), "abc")
    with pytest.raises(ConfigError, match="started with optimizer 'sgd', found 'adam'"):
        check_same_computation(before, RunConfig("ddp", optimizer="adam"), "abc")
