"""Ranks that are killed, end or raise: who it was, and the same kind of end in the Record."""

import re
from pathlib import Path

import pytest
from launching import run

from dpexp.record.record import Record

MODEL = """
import os, signal
import torch
from torch import nn
class Ending(nn.Linear):
    done = 0
    def example(self, samples, generator):
        return torch.randn(samples, 6, generator=generator), torch.zeros(samples, 2)
    def forward(self, x):
        if self.training and torch.is_grad_enabled():
            self.done += 1
        if self.done == 8 and os.environ["RANK"] == str(self.rank):
            self.done += 1
            ENDS[self.how]()
        return super().forward(x)
ENDS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(3),
}
def make(how, rank):
    model = Ending(6, 2)
    model.how, model.rank = how, rank
    return model
"""
GONE = r"error: rank RANK on host \S+ \(process \d+\) "


@pytest.mark.parametrize(
    ("how", "rank", "code", "status", "message"),
    [
        ("kill", 0, 1, "killed", GONE + "was killed by SIGKILL"),
        ("kill", 1, 1, "killed", GONE + "was killed by SIGKILL"),
        ("exit", 1, 1, "killed", GONE + "ended with code 3"),
    ],
    ids=lambda value: str(value).split()[0],
)
def test_whichever_rank_it_is_the_end_is_the_same(
    dpexp_home: Path, tmp_path: Path, how: str, rank: int, code: int, status: str, message: str
) -> None:
    (tmp_path / "ending.py").write_text(MODEL)
    model = f"{tmp_path}/ending.py:make:how={how},rank={rank}"
    steps = ("--steps", "20", "--warmup", "1", "--phase-steps", "0", "--no-check", "--quiet")
    ranks = ("--devices", "2", "--max-restarts", "0", "--comm-timeout", "6")
    done = run("ddp", "--model", model, *steps, *ranks)
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.splitlines()
    assert re.match(message.replace("RANK", str(rank)), line), line
    (folder,) = (dpexp_home / "runs").iterdir()
    record = Record.load(folder)
    assert (record.status, record.damage) == (status, [])
    if status == "killed":
        assert record.error is not None
        assert record.error["type"] == "LostContact"
