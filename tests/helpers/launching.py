"""Runs with ranks, as a user starts them: torchrun's real agents, real gloo processes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from dpexp.record.fold import load_record
from dpexp.record.record import Record
from helpers.command_lines import ENVIRONMENT, PATIENCE_S, ROOT, SCRIPT, Command, python
from helpers.command_lines import wait as wait_for_output

AGENT = ("-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
"""``python AGENT RANKS FILE WORDS`` starts ranks with torchrun."""

Process = Command | subprocess.Popen[str]


def start(*words: str, folder: Path = ROOT, **environment: str) -> subprocess.Popen[str]:
    """Start ``python WORDS`` in a folder: a new interpreter, and its ranks too (3 s of CPU time each)."""
    return subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | ENVIRONMENT | environment,
        cwd=folder,
    )


def start_forked(*words: str, folder: Path = ROOT, **environment: str) -> Command:
    """Start ``python WORDS`` in a folder in a forked process, whose ranks are forked too."""
    return Command(*words, folder=folder, **environment)


def wait(process: Process, timeout: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
    """Read the output of a process until it ends."""
    out, err = wait_for_output(process, timeout)
    assert process.returncode is not None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run(*words: str, folder: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """``scripts/run.py WORDS --no-track`` in a folder."""
    return python(SCRIPT, *words, "--no-track", folder=folder, **environment)


def torchrun(ranks: int, *words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """``torchrun --standalone --nproc-per-node RANKS scripts/run.py WORDS --no-track`` in a folder."""
    return python(*AGENT, ranks, SCRIPT, *words, "--no-track", folder=folder)


def record(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The Record that ``--json`` printed; stdout must hold nothing else."""
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# --- runs that are slow enough to be killed -----------------------------------------------------

MODEL = """
import torch, time
from torch import nn
class Slow(nn.Sequential):
    def example(self, samples, generator):
        return torch.randn(samples, 6, generator=generator), torch.zeros(samples, 2)
    def forward(self, x):
        if self.training:
            time.sleep(0.02)
        return super().forward(x)
def make():
    return Slow(nn.Linear(6, 16), nn.LayerNorm(16), nn.Dropout(0.3), nn.Linear(16, 2))
"""
STEPS = 60


def words(folder: Path, strategy: str = "ddp", steps: int = STEPS) -> list[str]:
    """The command line of a run of the slow model, which this writes to the folder."""
    (folder / "slow.py").write_text(MODEL)
    common = ["--model", f"{folder}/slow.py:make", "--no-check", "--warmup", "1", "--phase-steps", "1"]
    return [strategy, *common, "--steps", str(steps), "--json"]


def ranks_of(process: Process) -> dict[int, int]:
    """The process id of each rank that a launcher started, by rank; a forked rank has the name ``rank N``."""
    found = {}
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        name = Path(f"/proc/{child}/comm").read_text().split()
        environ = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        ranks = [entry.removeprefix(b"RANK=") for entry in environ if entry.startswith(b"RANK=")]
        if name[0] == "rank" or ranks:
            found[int(ranks[0] if ranks else name[1])] = int(child)
    return found


def left_behind() -> list[int]:
    """The processes that lost their parent and run on, of those that forked command lines started."""
    pid = python("-c", "import os; print(os.getppid())").stdout.strip()
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def until_step(home: Path, step: int, process: Process) -> Record:
    """Wait until the journal of the only run has this number of steps."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        journals = list(home.glob("runs/*/journal.jsonl"))
        if journals:
            found = load_record(journals[0].parent)
            if len(found.steps["loss"]) >= step:
                return found
        time.sleep(0.05)
    raise AssertionError(f"no step {step} within {PATIENCE_S} s; exit code {process.poll()}")
