"""Runs with ranks, as a user starts them: real torchrun agents, real gloo processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from command_lines import PATIENCE_S, shared

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = str(ROOT / "scripts" / "run.py")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def start(*words: str, **more: str) -> subprocess.Popen[str]:
    """``python WORDS``, not waited for."""
    return subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | ENVIRONMENT | more,
        cwd=ROOT,
    )


def wait(process: subprocess.Popen[str], timeout: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
    """Its end, its output read meanwhile."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"still running after {timeout} s\n{out[-3000:]}\n{err[-3000:]}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """``scripts/run.py WORDS --no-track``; where it starts ranks, they are new processes."""
    said = shared().run([*words, "--no-track"], ROOT, **(os.environ | ENVIRONMENT | more))
    return subprocess.CompletedProcess(words, said.code, said.stdout, said.stderr)


def torchrun(ranks: int, *words: str) -> subprocess.CompletedProcess[str]:
    """``torchrun --standalone --nproc-per-node RANKS scripts/run.py WORDS --no-track``."""
    agent = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    return wait(start(*agent, SCRIPT, *words, "--no-track"))


def record(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The Record that ``--json`` printed: all of stdout, and nothing else."""
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found
