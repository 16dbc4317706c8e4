"""Ranks that torchrun starts again begin their run anew: one Record, every step once, the same bits."""

import os
import signal
from pathlib import Path

import pytest
from launching import SCRIPT, STEPS, ranks_of, record, run, start_forked, until_step, wait, words
from servers import free_port
from tracking_processes import wait_until_gone

from dpexp.record.record import Record


@pytest.mark.parametrize(("strategy", "victim", "optimizer"), [("ddp", 0, "adamw"), ("fsdp", 1, "adam")])
def test_a_killed_rank_changes_no_bit(
    dpexp_home: Path, tmp_path: Path, strategy: str, victim: int, optimizer: str
) -> None:
    arguments = [*words(tmp_path, strategy), "--devices", "2", "--optimizer", optimizer]
    process = start_forked(SCRIPT, *arguments, "--no-track")
    interrupted = until_step(dpexp_home, 12, process)
    os.kill(ranks_of(process)[victim], signal.SIGKILL)
    found = record(wait(process))
    assert found["run_id"] == interrupted.run_id
    assert [folder.name for folder in (dpexp_home / "runs").iterdir()] == [found["run_id"]]
    assert (found["status"], found["damage"]) == ("finished", [])
    assert found["steps"]["samples"] == [30, 30, 30, 10] * (STEPS // 4)
    undisturbed = record(run(*arguments))
    assert found["digest"] == undisturbed["digest"]
    assert found["steps"]["loss"] == undisturbed["steps"]["loss"]


def test_ranks_end_with_their_launcher(dpexp_home: Path, tmp_path: Path) -> None:
    process = start_forked(SCRIPT, *words(tmp_path), "--devices", "2", "--no-track")
    until_step(dpexp_home, 12, process)
    ranks = ranks_of(process)
    assert len(ranks) == 2
    process.kill()
    process.communicate()
    for pid in ranks.values():
        wait_until_gone(pid)
    assert Record.load(next(dpexp_home.glob("runs/*"))).status == "killed"


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


def test_ranks_restart_where_torchrun_keeps_its_store(dpexp_home: Path, tmp_path: Path) -> None:
    """Without ``--standalone`` the store still has the addresses and the reports of the ranks before."""
    (tmp_path / "halting.py").write_text(HALTING)
    options = ("--nproc-per-node", "2", "--max-restarts", "1", "--master-port", str(free_port()))
    model = ("--model", f"{tmp_path}/halting.py:Halting", "--shard-embedding", "--sparse", "--no-check")
    steps = ("--steps", "20", "--warmup", "1", "--phase-steps", "1", "--json")
    agent = ("-P", "-m", "torch.distributed.run", *options)
    done = wait(start_forked(*agent, SCRIPT, "hybrid", *model, *steps, "--no-track"))
    assert len(record(done)["steps"]["loss"]) == 20
    assert len(list((dpexp_home / "runs").iterdir())) == 1
