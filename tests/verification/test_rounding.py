"""Rounding: float32 inside a forward, and operators without float64, are judged by a single device."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from odd_models import Routed, Scan, Two
from torch import nn

import dpexp
from dpexp.config.errors import NotComparableError, VerificationError
from dpexp.config.run_config import RunConfig
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import verify
from dpexp.parallel import DataParallel
from dpexp.verification.result import Result
from dpexp.verification.rounding import OtherwiseRounded

DEVICES = [torch.device("cpu", index) for index in range(3)]


def verified(model: nn.Module) -> Result:
    return verify(replace(prepare(RunConfig("whole", virtual=3)), model=model))


def test_float32_inside_a_forward_is_judged_by_its_own_rounding() -> None:
    torch.manual_seed(0)
    result = verified(Scan())
    assert (result.passed, result.dtype) == (True, torch.float64)
    assert 1e-12 < result.worst["gradients"].error < result.tolerance < 1e-5
    assert "rounding exceeds 1e-12; a single device that rounds it otherwise" in "; ".join(result.notes)


def test_an_operator_without_float64_is_verified_in_float32_with_a_measured_limit() -> None:
    torch.manual_seed(0)
    result = verified(Routed())
    assert (result.passed, result.cause, result.dtype) == (True, "", torch.float32)
    assert 1e-8 < result.tolerance < 1e-4
    assert "does not compute it in torch.float64: RuntimeError: Expected mat_a to be Float32" in "; ".join(
        result.notes
    )


@pytest.mark.parametrize("make", [Scan, Routed])
def test_a_wrong_layout_of_such_a_model_is_still_caught(make: Any) -> None:
    def wrong(model: nn.Module, devices: list[torch.device]) -> nn.Module:
        model.head.weight.register_hook(lambda gradient: gradient * 1.001)
        return DataParallel(model, devices)

    torch.manual_seed(0)
    batches = [(torch.randn(rows, 5), torch.randn(rows, 2)) for rows in (8, 5, 8)]
    right = dpexp.prove(make(), DataParallel, batches, nn.functional.mse_loss, devices=DEVICES)
    assert right.passed
    with pytest.raises(VerificationError) as caught:
        dpexp.prove(make(), wrong, batches, nn.functional.mse_loss, devices=DEVICES)
    assert (caught.value.tensor, caught.value.module) == ("head.weight", "head")


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
    result = dpexp.prove(Chaotic(), rounded_otherwise(1.0), batches, nn.functional.mse_loss)
    notes = "; ".join(result.notes)
    assert "not comparable: step 1 (8 rows), step 3 (8 rows), where rounding" in notes
    assert "not comparable: outputs in eval mode" in notes
    assert (result.passed, result.steps) == (True, 1)
    with pytest.raises(VerificationError) as caught:
        dpexp.prove(Chaotic(), rounded_otherwise(1.01), batches, nn.functional.mse_loss)
    error = caught.value
    assert (error.kind, error.step) == ("outputs", 3), "the first evaluation of the five rows"
    assert error.limit is not None
    assert error.limit < 1e-3 < (error.error or 0) < 1e-2
    with pytest.raises(NotComparableError, match=r"nothing could be compared: .*step 1 \(8 rows\)"):
        dpexp.prove(Chaotic(most=0), rounded_otherwise(1.0), batches, nn.functional.mse_loss)
