"""Eager optimizers: the bits and hooks of PyTorch's own, and a run with them imports no ``torch._dynamo``."""

import subprocess
import sys
from pathlib import Path

import torch
from helpers.command_lines import PATIENCE_S, ROOT
from torch import nn

from dpexp.training.optimizers import eager

RUNS = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import dpexp
from dpexp.training.registry import FOR_SPARSE, OPTIMIZERS
short = dict(steps=2, warmup=1, clip_norm=1.0, track=False, quiet=True)
for name in OPTIMIZERS:
    assert dpexp.run("whole", optimizer=name, virtual=2, **short).status == "finished"
for name in FOR_SPARSE:
    record = dpexp.run("hybrid", optimizer=name, sparse=True, devices="cpu", **short)
    assert record.status == "finished"
print("torch" in sys.modules, "torch._dynamo" in sys.modules)
"""


def test_a_run_with_any_optimizer_does_not_import_torch_dynamo(dpexp_home: Path) -> None:
    command = [sys.executable, "-B", "-c", RUNS]  # -B: not in a fork, which has everything imported
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (0, "True False\n"), done.stderr


def test_hooks_run_once_a_step_and_pytorchs_own_class_stays() -> None:
    step, called = torch.optim.SGD.step, list[str]()
    weight = nn.Parameter(torch.ones(2))
    optimizer = eager(torch.optim.SGD)([weight], lr=0.5)
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    weight.grad = torch.ones(2)
    optimizer.step()
    assert called == ["before", "after"]
    assert weight.tolist() == [0.5, 0.5]
    assert (type(optimizer).__name__, isinstance(optimizer, torch.optim.SGD)) == ("SGD", True)
    assert torch.optim.SGD.step is step
