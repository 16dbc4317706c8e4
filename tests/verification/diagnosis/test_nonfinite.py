"""A NaN on the single device is not a fault of the layout: the error names where it began."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import dpexp
from dpexp.parallel import DataParallel
from dpexp.verification.diagnosis.nonfinite import NonfiniteError

DEVICES = [torch.device("cpu", 0), torch.device("cpu", 1)]


class Rooted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sqrt()


def proof_result(model: nn.Module, x: torch.Tensor, y: torch.Tensor, lr: float = 0.1) -> Any:
    make = partial(torch.optim.SGD, lr=lr)
    return dpexp.prove(model, DataParallel, [(x, y)] * 3, functional.mse_loss, make, devices=DEVICES)


def broken(tensor: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.arange(len(tensor))[:, None] == 3, math.nan, tensor)


X, Y = torch.ones(8, 5), torch.ones(8, 2)
CASES = {
    "the inputs": (nn.Linear(5, 2), broken(X), Y),
    "the targets": (nn.Linear(5, 2), X, broken(Y)),
    "module '1'": (nn.Sequential(nn.Identity(), Rooted(), nn.Linear(5, 2)), -X, Y),
}


@pytest.mark.parametrize("source", CASES)
def test_a_nan_names_its_step_and_where_it_began(source: str) -> None:
    with pytest.raises(NonfiniteError, match=rf"is nan in step 1 .*\(8 rows\); .* comes from {source}$"):
        proof_result(*CASES[source])


def test_a_loss_that_training_makes_infinite_suggests_a_smaller_learning_rate() -> None:
    with pytest.raises(NonfiniteError, match=r"in step 3 .*: try a smaller learning rate"):
        proof_result(nn.Linear(5, 2), X, Y, lr=1e100)


def test_infinite_outputs_with_a_finite_loss_are_compared() -> None:
    class Masked(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs).masked_fill(torch.tensor([False, False, True]), -math.inf)

    batches = [(X, torch.zeros(8, dtype=torch.long))]
    assert dpexp.prove(Masked(5, 3), DataParallel, batches, devices=DEVICES).passed
