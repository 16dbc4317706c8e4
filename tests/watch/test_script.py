"""``python -m dpexp.watch SCRIPT``: programs that nobody edits, run as they are."""

import subprocess
from pathlib import Path

import pytest
from helpers.command_lines import ROOT, python
from helpers.launching import AGENT, start, wait

from dpexp.record.fold import load_record

WATCH = ("-m", "dpexp.watch", "--no-track")
BEGIN = """
import os, pickle, sys
import torch
from torch import distributed, nn
from torch.nn.functional import mse_loss

words = sys.argv[1:]

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)

def train(model, optimizer, loss=mse_loss, steps=6):
    for _ in range(steps):
        for rows in (6, 2):
            share = rows / 8 if "weighted" in words else 1 / 2
            (loss(model(torch.randn(rows, 8)), torch.randn(rows, 2)) * share).backward()
        optimizer.step()
        if "accumulated" not in words:
            optimizer.zero_grad()

torch.manual_seed(0)
"""
PLAIN = """
LOSSES = {"mse": nn.MSELoss(), "early": mse_loss}

if __name__ == "__main__":
    half = object.__new__(nn.Linear)  # as one whose constructor has raised
    train(net := Net(), torch.optim.AdamW(net.parameters()), LOSSES["mse" if "module" in words else "early"])
    assert type(pickle.loads(pickle.dumps(net))) is Net
    assert sys.modules["__main__"].Net is Net
    print(__file__, sys.argv, sys.path[0], __spec__, open("data.txt").read())
    print([each.sum().item().hex() for each in net.parameters()], torch.rand(1).item().hex())
    if "exit" in words:
        sys.exit(int(words[-1]))
    if "raise" in words:
        raise ValueError("the script is broken")
"""
RANKS = """
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("gloo")
model = net = Net()
if "ddp" in words:
    model = DistributedDataParallel(net)
else:
    for layer in net.layers:
        fully_shard(layer)
    fully_shard(net)
torch.manual_seed(distributed.get_rank())
train(model, torch.optim.AdamW(net.parameters()))
distributed.barrier()
distributed.destroy_process_group()
"""
SPAWNED = """
from torch import multiprocessing
from torch.nn.parallel import DistributedDataParallel

def work(rank, folder):
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    model = DistributedDataParallel(Net())
    torch.manual_seed(rank)
    train(model, torch.optim.AdamW(model.parameters()), nn.MSELoss())
    distributed.barrier()
    distributed.destroy_process_group()

if __name__ == "__main__":
    multiprocessing.spawn(work, args=(os.getcwd(),), nprocs=2)
    print("every process has ended")
"""
STARTS_ITSELF = """
import subprocess
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ.get("LOCAL_RANK", 0))
if not rank:
    again = [sys.executable, os.path.abspath(sys.argv[0]), *words]
    other = subprocess.Popen(again, env=os.environ | {"LOCAL_RANK": "1"})
distributed.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=rank, world_size=2)
model = DistributedDataParallel(Net())
torch.manual_seed(rank)
train(model, torch.optim.AdamW(model.parameters()))
distributed.barrier()
distributed.destroy_process_group()
if not rank:
    print("the other has ended with", other.wait())
"""
TOGETHER = """
encoder, decoder, scale = nn.Linear(8, 4), nn.Linear(4, 2), nn.Parameter(torch.ones(()))
optimizer = torch.optim.AdamW([*encoder.parameters(), *decoder.parameters(), scale])
train(lambda x: decoder(torch.tanh(encoder(x))) * scale, optimizer)
"""
ADVERSARIES = """
class Critic(nn.Sequential):
    pass

critic, maker = Critic(nn.Linear(2, 1)), Net()
critics, makers = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (critic, maker))
loss = nn.BCEWithLogitsLoss()
for _ in range(6):
    made = maker(torch.randn(4, 8))
    makers.zero_grad()
    loss(critic(made), torch.ones(4, 1)).backward()
    makers.step()
    critics.zero_grad()
    real, false = critic(torch.randn(4, 2)), critic(made.detach())
    (loss(real, torch.ones(4, 1)) + loss(false, torch.zeros(4, 1))).backward()
    critics.step()
"""
ITS_OWN = """
import dpexp

run = dpexp.watch(net := Net(), mse_loss, track=False)
train(net, torch.optim.AdamW(net.parameters()), run.loss)
print(run)
"""


def run(folder: Path, program: str, *words: str, before: tuple[str, ...] = WATCH):
    """Run a program in a folder, watched."""
    (folder / "train.py").write_text(BEGIN + program)
    (folder / "data.txt").write_text("its own data")
    return python(*before, "train.py", *words, folder=folder, PYTHONPATH=str(ROOT))


def says(done: subprocess.CompletedProcess[str], code: int, *texts: str) -> None:
    assert done.returncode == code, done.stderr
    for each in texts:
        assert each in done.stderr


# --- a process ----------------------------------------------------------------------------------------


def test_a_script_prints_what_it_prints_without_a_watch(tmp_path: Path) -> None:
    watched = run(tmp_path, PLAIN, "weighted")
    says(watched, 0, "right: 4 steps", "watched: Net, optimized by AdamW")
    plain, new = (
        wait(start(*before, "train.py", "weighted", folder=tmp_path, PYTHONPATH=str(ROOT)))
        for before in ((), WATCH)
    )
    assert new.stdout == watched.stdout == plain.stdout
    assert "its own data" in plain.stdout
    says(new, 0, "right: 4 steps")


@pytest.mark.parametrize("loss", ["module", "early"])
def test_a_mean_of_means_is_wrong(tmp_path: Path, loss: str) -> None:
    done = run(tmp_path, PLAIN, loss)
    says(done, 1, "micro-batches of unequal rows are averaged as if equal")


@pytest.mark.parametrize(
    ("words", "code"), [(("exit", "0"), 1), (("exit", "3"), 3), (("raise",), 1)], ids=lambda each: str(each)
)
def test_a_wrong_script_ends_with_its_own_code_or_with_1(
    tmp_path: Path, words: tuple[str, ...], code: int
) -> None:
    done = run(tmp_path, PLAIN, "weighted", "accumulated", *words)
    says(done, code, "WRONG step 2", "zero_grad is missing")
    assert ("ValueError: the script is broken" in done.stderr) is ("raise" in words)


def test_a_script_that_raises_is_a_failed_run(home_with_store: Path, tmp_path: Path) -> None:
    done = run(tmp_path, PLAIN, "weighted", "raise", before=("-m", "dpexp.watch", "--name", "mine"))
    says(done, 1, "right: 4 steps", "ValueError: the script is broken")
    (folder,) = (home_with_store / "runs").iterdir()
    record = load_record(folder)
    assert (record.name, record.status, (record.error or {})["type"]) == ("mine", "failed", "ValueError")
    assert record.verification["passed"]


def test_of_several_models_one_is_watched_and_the_others_are_said(tmp_path: Path) -> None:
    says(
        run(tmp_path, ADVERSARIES),
        0,
        "right: 4 steps",
        "watched: Critic, optimized by SGD",
        "not watched, so that losses are not compared: Net, optimized by SGD",
    )


def test_of_an_optimizer_of_several_models_one_is_watched(tmp_path: Path) -> None:
    done = run(tmp_path, TOGETHER, "weighted")
    says(done, 0, "right: 4 steps", "watched: Linear, partly optimized by AdamW")


def test_a_script_that_watches_itself_is_left_alone(tmp_path: Path) -> None:
    done = run(tmp_path, ITS_OWN, "accumulated")
    says(done, 0, "nothing was watched: the program calls dpexp.watch itself")
    assert "WRONG step 1" in done.stdout


def test_a_script_without_a_model_says_so(tmp_path: Path) -> None:
    says(run(tmp_path, "print(words)"), 0, "nothing was watched: no model was laid out")


# --- several processes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "is_right", "text"),
    [("ddp", True, "right: 4 steps"), ("fsdp", False, "averaged as if equal")],
)
def test_ranks_of_torchrun(tmp_path: Path, layout: str, is_right: bool, text: str) -> None:
    words = (layout, *(["weighted"] if is_right else []))
    done = run(tmp_path, RANKS, *words, before=(*AGENT, "2", *WATCH))
    layouts = {"ddp": "DistributedDataParallel", "fsdp": "fully_shard"}
    says(done, 0 if is_right else 1, text, f"watched: Net, given to {layouts[layout]}")
    assert done.stderr.count("watched:") == 1


@pytest.mark.parametrize(
    ("program", "end", "is_right"),
    [(SPAWNED, "every process has ended", True), (STARTS_ITSELF, "the other has ended with 0", False)],
    ids=["spawned", "itself"],
)
def test_processes_that_the_script_starts(tmp_path: Path, program: str, end: str, is_right: bool) -> None:
    done = run(tmp_path, program, *(["weighted"] if is_right else []))
    says(done, 0 if is_right else 1, "watched: Net, given to DistributedDataParallel")
    assert end in done.stdout
    assert done.stderr.count("watched:") == 1


# --- mistakes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "the following arguments are required: script"),
        (("trian.py",), "'trian.py' is not a file"),
        (("--stpes", "3", "train.py"), "--stpes"),
        (("--steps", "0", "train.py"), "steps is 0: it must be a whole number from 1"),
        (("--name", "x" * 300, "train.py"), "at most 250 characters"),
    ],
)
def test_a_mistake_is_an_error_before_the_script_runs(
    dpexp_home: Path, tmp_path: Path, words: tuple[str, ...], text: str
) -> None:
    (tmp_path / "train.py").write_text("print('it runs')")
    done = python("-m", "dpexp.watch", *words, folder=tmp_path, PYTHONPATH=str(ROOT))
    says(done, 2, text)
    assert not done.stdout
    assert not list(dpexp_home.iterdir())
