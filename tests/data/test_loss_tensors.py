"""A loss that holds tensors is computed where the outputs are, and in their type."""

from functools import partial
from typing import Any

import pytest
import torch
from planted import on_host, proven
from torch import nn
from torch.nn import functional

import dpexp
from dpexp.data.batch import Batch
from dpexp.data.loss_tensors import LossTensors

WEIGHT = torch.tensor([1.0, 2.0, 0.5])


class Plain(nn.Module):
    """Holds its weights as an attribute that is not a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = WEIGHT

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs, targets, self.weight)


LOSSES = {
    "module": nn.CrossEntropyLoss(weight=WEIGHT),
    "attribute": Plain(),
    "partial": partial(functional.cross_entropy, weight=WEIGHT),
    "module in a partial": partial(nn.CrossEntropyLoss(weight=WEIGHT)),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_loss_with_tensors_is_verified_in_float64(loss: Any) -> None:
    batches = [(torch.randn(8, 5), torch.arange(8) % 3)]
    result = dpexp.prove(nn.Linear(5, 3), lambda model, devices: model, batches, loss)
    assert (result.passed, result.dtype, list(result.notes)) == (True, torch.float64, [])


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_tensors_of_a_loss_are_moved_to_the_outputs(loss: Any) -> None:
    outputs = torch.zeros(4, 3, device="meta")
    found = LossTensors(loss).beside(outputs)(outputs, torch.zeros(4, dtype=torch.long, device="meta"))
    assert found.device.type == "meta"


def test_a_loss_that_fits_is_not_copied_and_one_that_does_not_stays_as_it_was() -> None:
    loss = nn.CrossEntropyLoss(weight=WEIGHT)
    made = LossTensors(loss)
    assert made.beside(torch.zeros(2, 3)) is loss
    with torch.autocast("cpu", torch.bfloat16):
        assert made.beside(torch.zeros(2, 3).bfloat16()) is loss
    copied: Any = made.beside(torch.zeros(2, 3).double())
    assert made.beside(torch.zeros(2, 3).double()) is copied
    back: Any = made.beside(torch.zeros(2, 3))
    assert (copied.weight.dtype, back.weight.dtype) == (torch.float64, torch.float32)
    assert loss.weight is WEIGHT


def test_the_note_of_a_narrower_comparison_has_the_error_of_the_loss() -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs, targets, WEIGHT)

    batches = [batch(torch.randn(8, 5), torch.arange(8) % 3)]
    result = proven(nn.Linear(5, 3), on_host, batches, loss)
    (note,) = result.notes
    assert "does not compute it in torch.float64: RuntimeError: expected scalar type" in note


def batch(inputs: torch.Tensor, targets: torch.Tensor) -> Any:
    return Batch((inputs,), targets, len(inputs), len(inputs))
