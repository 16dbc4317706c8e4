"""Halves: a loss that splits over rows is told from one that does not."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpexp.data.batch import Batch
from dpexp.data.objective import Objective, no_mean_over_rows

ROWS = 31
SAMPLES = torch.Generator().manual_seed(0)
X = torch.randn(ROWS, 6, generator=SAMPLES)
CLASSES = torch.randint(3, (ROWS,), generator=SAMPLES)
VALUES = torch.randn(ROWS, 3, generator=SAMPLES)
MASKED = CLASSES.masked_fill(torch.arange(ROWS) < 9, -100)


def sum_of_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().sum()


def root(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.mse_loss(outputs, targets).sqrt()


def of_many_rows(outputs: Tensor, targets: Tensor) -> Tensor:
    assert len(outputs) == ROWS
    return root(outputs, targets)


class LossInside(nn.Linear):
    def __init__(self, after: nn.Module) -> None:
        super().__init__(6, 3)
        for each in self.parameters():
            nn.init.normal_(each, generator=SAMPLES)
        self.after = after

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self.after(super().forward(x)).float(), targets)


LINEAR = nn.Linear(6, 3)
for _each in LINEAR.parameters():
    nn.init.normal_(_each, generator=SAMPLES)


@pytest.mark.parametrize(
    ("model", "targets", "loss", "reduction", "is_split"),
    [
        (LINEAR, VALUES, None, "", True),
        (LINEAR, MASKED, None, "tokens", True),
        (nn.Sequential(LINEAR, nn.BatchNorm1d(3, track_running_stats=False)), VALUES, None, "", True),
        (LINEAR, VALUES, sum_of_squares, "", False),
        (LINEAR, VALUES, sum_of_squares, "sum", True),
        (LINEAR, VALUES, root, "", False),
        (LINEAR, VALUES, of_many_rows, "", True),  # not known
        (LINEAR, CLASSES, nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 5.0])), "", False),
        (LossInside(nn.Dropout()), CLASSES, None, "", True),
        (LossInside(nn.BatchNorm1d(3)), MASKED, None, "", False),
        (LossInside(nn.BatchNorm1d(3)), MASKED, None, "tokens", True),
        (LossInside(nn.BatchNorm1d(3, track_running_stats=False)), CLASSES, None, "", True),  # not known
    ],
)
def test_a_loss_is_or_is_not_that_of_its_halves(
    model: nn.Module, targets: Tensor, loss: Any, reduction: str, is_split: bool
) -> None:
    inputs = (X, targets) if isinstance(model, LossInside) else (X,)
    objective = Objective.of(model, loss=loss, reduction=reduction)
    found = no_mean_over_rows(model, objective, Batch(inputs, targets, ROWS, ROWS))
    assert (found == "") == is_split, found
    assert is_split or "is not a mean over rows. For a sum give --reduction sum" in found
