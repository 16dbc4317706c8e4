"""A loss of a single device that is not finite is not a fault of the layout."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import dpexp
from dpexp.parallel import DataParallel
from dpexp.verification.trial import NonfiniteError

DEVICES = [torch.device("cpu", 0), torch.device("cpu", 1)]


def proof_result(model: nn.Module, x: torch.Tensor, y: torch.Tensor, lr: float = 0.1) -> Any:
    make = partial(torch.optim.SGD, lr=lr)
    return dpexp.prove(model, DataParallel, [(x, y)] * 3, functional.mse_loss, make, devices=DEVICES)


X, Y = torch.ones(8, 5), torch.ones(8, 2)


def test_a_loss_that_training_makes_infinite_suggests_a_smaller_learning_rate() -> None:
    with pytest.raises(NonfiniteError, match=r"is nan in step 1$"):
        proof_result(nn.Linear(5, 2), X * math.nan, Y)
    with pytest.raises(NonfiniteError, match=r"in step 3: try a smaller learning rate"):
        proof_result(nn.Linear(5, 2), X, Y, lr=1e100)


def test_infinite_outputs_with_a_finite_loss_are_compared() -> None:
    class Masked(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs).masked_fill(torch.tensor([False, False, True]), -math.inf)

    batches = [(X, torch.zeros(8, dtype=torch.long))]
    assert dpexp.prove(Masked(5, 3), DataParallel, batches, devices=DEVICES).passed
