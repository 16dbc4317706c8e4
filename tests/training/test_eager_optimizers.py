"""Eager optimizers: the bits and hooks of PyTorch's own, and a run with them imports no ``torch._dynamo``."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from command_lines import PATIENCE_S, ROOT
from torch import nn

from dpexp.training.eager_optimizers import eager
from dpexp.training.optimizers import FOR_SPARSE, OPTIMIZERS

RUNS = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import dpexp
from dpexp.training.optimizers import FOR_SPARSE, OPTIMIZERS
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


DENSE = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam]
DENSE += [torch.optim.RAdam, torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.RMSprop]
SPARSE = [torch.optim.SGD, torch.optim.SparseAdam, torch.optim.Adagrad]


def trained(kind: Any, sparse: bool, **options: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    """The weights of a table and of another group after three steps, and what the optimizer keeps."""
    torch.manual_seed(0)
    torch.sparse.check_sparse_tensor_invariants.disable()  # else torch warns in Adagrad's step
    table, other = nn.Embedding(9, 4, sparse=sparse), nn.Parameter(torch.ones(2, 4))
    groups = [{"params": [table.weight]}, {"params": [other]}]
    if issubclass(kind, torch.optim.Adagrad):  # before torch 2.13 it has no state of an added group
        optimizer = kind(groups, lr=0.1, **options)
    else:
        optimizer = kind(groups[:1], lr=0.1, **options)
        optimizer.add_param_group(groups[1])
    for ids in torch.arange(27).reshape(3, 9) % 7:
        (table(ids).square().sum() + (0.0 if sparse else other.square().sum())).backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([table.weight.detach(), other.detach()]), optimizer.state_dict()


@pytest.mark.parametrize(
    ("kind", "sparse"), [*((kind, False) for kind in DENSE), *((kind, True) for kind in SPARSE)]
)
def test_an_eager_optimizer_gives_the_bits_of_the_one_that_it_is_made_of(kind: Any, sparse: bool) -> None:
    (weights, state), (expected, expected_state) = trained(eager(kind), sparse), trained(kind, sparse)
    assert torch.equal(weights, expected)
    assert not torch.equal(weights[:9], nn.Embedding(9, 4).weight)
    torch.testing.assert_close(state, expected_state, rtol=0.0, atol=0.0)


def test_all_optimizers_that_have_a_name_are_compared() -> None:
    named = {target.split(":")[1] for target in OPTIMIZERS.values()}
    assert named <= {kind.__name__ for kind in DENSE}
    assert {factory.rpartition(":")[2] for factory in FOR_SPARSE.values()} == {
        kind.__name__ for kind in SPARSE
    }


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
