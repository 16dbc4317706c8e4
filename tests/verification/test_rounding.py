"""Rounding: steps that it decides are not compared, and what measures it changes nothing."""

from typing import Any

import pytest
import torch
from odd_models import Two
from torch import nn
from torch.nn.functional import mse_loss

import dpexp
from dpexp.config.errors import NotComparableError, VerificationError
from dpexp.verification.rounding import OtherwiseRounded


def test_rounding_otherwise_changes_nothing_in_place() -> None:
    x = torch.randn(7, 5)
    before = x.clone()
    with OtherwiseRounded():
        view = x.t()[1:]
        moved = x + 0.0
    assert torch.equal(x, before)
    assert torch.equal(view, before.t()[1:])
    assert 0 < (moved - before).abs().max() < 1e-6


class Chaotic(Two):
    """With more than ``most`` rows, last bits decide what it computes: x -> 4 x (1 - x), sixty times."""

    def __init__(self, most: int = 5) -> None:
        super().__init__()
        self.most = most

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        middle = torch.sigmoid(self.first(x))
        end = middle.detach()
        for _ in range(60 if len(x) > self.most else 0):
            end = 4 * end * (1 - end)
        outputs: torch.Tensor = self.head(middle + end)
        return outputs


def rounded_otherwise(factor: float) -> Any:
    """The outputs of the first layer are off by some last bits, and scaled."""

    def lay_out(model: nn.Module, devices: list[torch.device]) -> nn.Module:
        model.first.register_forward_hook(lambda module, inputs, outputs: factor * outputs * (1 + 2**-50))
        return model

    return lay_out


def test_of_steps_that_rounding_decides_nothing_is_said_and_the_others_decide() -> None:
    torch.manual_seed(0)
    batches = [(torch.randn(rows, 5), torch.randn(rows, 2)) for rows in (8, 5, 8)]
    result = dpexp.prove(Chaotic(), rounded_otherwise(1.0), batches, mse_loss)
    notes = "; ".join(result.notes)
    assert "not comparable: step 1 (8 rows), step 3 (8 rows), where rounding" in notes
    assert "not comparable: outputs in eval mode" in notes
    assert (result.passed, result.steps) == (True, 1)
    with pytest.raises(VerificationError) as caught:
        dpexp.prove(Chaotic(), rounded_otherwise(1.01), batches, mse_loss)
    error = caught.value
    assert (error.kind, error.step) == ("outputs", 3), "the first evaluation of the five rows"
    assert error.limit is not None
    assert error.limit < 1e-3 < (error.error or 0) < 1e-2
    with pytest.raises(NotComparableError, match=r"nothing could be compared: .*step 1 \(8 rows\)"):
        dpexp.prove(Chaotic(most=0), rounded_otherwise(1.0), batches, mse_loss)
