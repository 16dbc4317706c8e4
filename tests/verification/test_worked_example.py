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

X = torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64)


def model() -> nn.Linear:
    made = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.ones_(made.weight)
    return made


def test_the_numbers_are_those_of_the_example() -> None:
    found = []
    for rows in (X[:2], X[2:], X):
        single = model()
        loss = single(rows).square().mean()
        loss.backward()
        torch.optim.SGD(single.parameters(), lr=0.01).step()
        assert single.weight.grad is not None
        found.append((loss.item(), single.weight.grad.item(), single.weight.item()))
    (loss_0, gradient_0, _), (loss_1, gradient_1, _), of_all = found
    assert (loss_0, gradient_0, loss_1, gradient_1) == (2.5, 5, 16, 32)
    assert of_all == pytest.approx((7, 14, 0.86))
    assert (2 / 3 * loss_0 + 1 / 3 * loss_1, 2 / 3 * gradient_0 + 1 / 3 * gradient_1) == pytest.approx(
        (7, 14)
    )


def right(model: nn.Module, mesh: Any) -> nn.Module:
    return DistributedDataParallel(model)


def wrong(model: nn.Module, mesh: Any) -> nn.Module:
    """Undoes that a rank counts by its rows."""

    def mean_of_means(_: nn.Module, inputs: Any, y: torch.Tensor) -> torch.Tensor:
        return y.detach() + (y - y.detach()) * len(X) / (2 * len(y))

    model.register_forward_hook(mean_of_means)
    return DistributedDataParallel(model)


def proven(group: ProcessGroup, layout: str) -> tuple[str, float | None]:
    lay_out, mesh = (
        {"right": right, "wrong": wrong}[layout],
        init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)),
    )
    try:
        dpexp.prove(model(), lay_out, [(X, 0 * X)], nn.functional.mse_loss, mesh=mesh)
    except dpexp.VerificationError as error:
        return error.cause, error.error
    return "", None


def test_a_proof_finds_the_mean_of_the_ranks_means() -> None:
    of_right, of_wrong = in_ranks(2, __file__, "proven:right", "proven:wrong").values()
    assert of_right == [["", None]] * 2
    for cause, error in of_wrong:
        assert "gradients (weight) differ by 3.2e-01" in cause
        assert "it is 1.32143 times the single device's" in cause
        assert error == pytest.approx(4.5 / 14)
