"""A watch in a user's own tests, alone and under torchrun, and the example of ``examples/``."""

from pathlib import Path

import pytest
from command_lines import ROOT, python
from launching import AGENT

EXAMPLE = ROOT / "examples" / "watched_loop.py"
RANKS = {"one process": (), "two ranks": (*AGENT, "2")}
USERS = """
import os

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import dpexp
from dpexp.verification.result import VerificationError


@pytest.fixture(scope="session", autouse=True)
def process_group():
    if "RANK" in os.environ:
        distributed.init_process_group("gloo")
        torch.manual_seed(distributed.get_rank())  # each rank draws its own rows
    yield
    if distributed.is_initialized():
        distributed.destroy_process_group()


def train(model, loss_fn, divisor):
    model = DistributedDataParallel(model) if distributed.is_initialized() else model
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(6):
        optimizer.zero_grad()
        for _ in range(2):
            (loss_fn(model(torch.randn(4, 8)), torch.randn(4, 2)) / divisor).backward()
        optimizer.step()


def test_the_loop_is_right():
    model = nn.Linear(8, 2)
    with dpexp.watch(model, nn.functional.mse_loss, track=False) as run:
        train(model, run.loss, 2)
    assert run.verdict().steps == 4


def test_a_wrong_loop_is_found():
    model = nn.Linear(8, 2)
    with dpexp.watch(model, nn.functional.mse_loss, track=False) as run:
        train(model, run.loss, 1)
    with pytest.raises(VerificationError, match="not divided by 2"):
        run.verdict()
"""


@pytest.mark.parametrize("ranks", RANKS)
def test_a_user_watches_a_loop_in_pytest(ranks: str, tmp_path: Path) -> None:
    (tmp_path / "test_loop.py").write_text(USERS)
    quiet = ("-q", "-p", "no:cacheprovider", "test_loop.py")
    done = python(*RANKS[ranks], "-m", "pytest", *quiet, folder=tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("2 passed") == (2 if RANKS[ranks] else 1), done.stdout


@pytest.mark.parametrize("ranks", RANKS)
def test_the_example_is_right_and_with_wrong_is_wrong(ranks: str, tmp_path: Path, runs: Path) -> None:
    done = python(*RANKS[ranks], EXAMPLE, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "right: 4 steps" in done.stdout
    done = python(*RANKS[ranks], EXAMPLE, "--wrong", folder=tmp_path)
    assert done.returncode == 1
    assert "the loss of each of 4 micro-batches is not divided by 4" in done.stdout + done.stderr
