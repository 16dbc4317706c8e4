"""The worked example of ``dpexp.verification``: its numbers, and what a proof over two ranks says of them."""

from typing import Any

import pytest
import torch
from helpers.in_ranks import in_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import dpexp
from dpexp.distributed.group import ProcessGroup

X = torch.tensor([[1.0], [2.0], [4.0]])


def test_the_numbers_are_those_of_the_example() -> None:
    def step(rows: torch.Tensor) -> tuple[float, float]:
        w = torch.ones((), requires_grad=True)
        loss = (w * rows).square().mean()
        loss.backward()
        assert w.grad is not None
        return loss.item(), w.grad.item()

    assert [step(rows) for rows in (X[:2], X[2:], X)] == [(2.5, 5), (16, 32), (7, 14)]
    by_rows = [2 / 3 * of_0 + 1 / 3 * of_1 for of_0, of_1 in ((2.5, 16), (5, 32))]
    assert by_rows == pytest.approx([7, 14])


def mean_of_means(model: nn.Module, mesh: Any) -> nn.Module:
    """Undoes that a rank counts by its rows."""
    model.register_forward_hook(lambda _, x, y: y.detach() + (y - y.detach()) * len(X) / (2 * len(y)))
    return DistributedDataParallel(model)


def proven(group: ProcessGroup) -> tuple[str, float | None]:
    model, mesh = nn.Linear(1, 1, bias=False), init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    nn.init.ones_(model.weight)
    with pytest.raises(dpexp.VerificationError) as raised:
        dpexp.prove(model, mean_of_means, [(X, 0 * X)], nn.functional.mse_loss, mesh=mesh)
    return raised.value.cause, raised.value.error


def test_a_proof_finds_the_mean_of_the_ranks_means() -> None:
    for cause, error in in_ranks(2, __file__, "proven")["proven"]:
        assert "gradients (weight) differ by 3.2e-01" in cause
        assert "it is 1.32143 times the single device's" in cause
        assert error == pytest.approx(4.5 / 14)
