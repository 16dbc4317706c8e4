"""Clones: what a watch keeps of a loop, the same numbers once; the verdict is as if each had its own."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from loops import (
    MLP,
    LanguageModel,
    cross_entropy,
    ended,
    loop,
    mse,
    normalized,
    numbers,
    sgd,
    steps_of,
    tokens,
    watch,
)
from torch import nn
from torch.nn import functional

from dpexp import devices, tensors
from dpexp.parallel.data_parallel import DataParallel
from dpexp.watch.clones import Clones

pytestmark = pytest.mark.usefixtures("one_thread")


def kept(run: Any) -> list[int]:
    """The bytes of each memory that the calls of the window have, but for single numbers."""
    window = run._calls.window
    some = [
        (each.inputs, each.leaves, [*each.gradients.values()], each.before and each.before.buffers)
        for each in (*window.calls, *window.losses)
    ]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors.walk(some)}
    return sorted(each.nbytes() for each in storages.values() if each.nbytes() > 8)


def trained(
    model: nn.Module,
    loss: Callable[..., Any],
    batch: Callable[[int, int], Any],
    after: Callable[[Any], Any] = lambda outputs: outputs,
    micro: int = 2,
) -> list[int]:
    """A right loop of micro-batches: the bytes that are kept before the last step."""
    run = watch(model, loss)
    for step in steps_of(sgd(model.parameters())):
        for number in range(micro):
            inputs, labels = batch(step, number)
            (run.loss(after(model(inputs)), labels) / micro).backward()
        found = kept(run)
    assert ended(run) == {"error": "", "words": "", "steps": 3}
    return found


LOGITS, IDS = 3 * 6 * 16 * 4, 3 * 6 * 8
"""The bytes of the logits of a micro-batch of tokens, and of its ids, or labels."""


def test_logits_and_their_gradient_are_kept_once_each() -> None:
    found = trained(LanguageModel(), cross_entropy, tokens)
    assert found == sorted([LOGITS, LOGITS, IDS, IDS] * 2)


def test_a_view_of_the_outputs_is_a_view_of_their_clone() -> None:
    def of_rows(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits, labels.flatten())

    found = trained(LanguageModel(), of_rows, tokens, lambda logits: logits.flatten(0, 1))
    assert found == sorted([LOGITS, LOGITS, IDS, IDS] * 2)


def test_rows_of_data_in_one_memory_are_kept_alone() -> None:
    data = torch.randn(1000, 8)

    def batch(step: int, micro: int) -> Any:
        some = data[6 * micro : 6 * micro + 6]
        return some, some[:, :4]

    found = trained(MLP(), mse, batch)
    assert found == sorted([6 * 8 * 4, 6 * 4 * 4, 6 * 4 * 4] * 2)  # inputs, outputs, gradients


def test_buffers_that_no_call_writes_to_are_kept_once() -> None:
    model = normalized()[:-1]  # with batch norm
    model.register_buffer("mask", torch.ones(64))
    found = trained(model, mse, numbers)
    assert found.count(64 * 4) == 1
    assert found.count(16 * 4) == 4  # two running statistics of two calls


class Doubled(nn.Module):
    """Its outputs are doubled in place after it was called: PyTorch counts that, or does not."""

    def __init__(self, is_counted: bool) -> None:
        super().__init__()
        self.is_counted = is_counted

    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        (outputs if self.is_counted else outputs.data).mul_(2)
        return outputs


@pytest.mark.parametrize("is_counted", [True, False])
def test_outputs_that_the_loop_writes_to_are_others(is_counted: bool) -> None:
    doubled = trained(MLP(), mse, numbers, Doubled(is_counted))
    assert sum(doubled) == sum(trained(MLP(), mse, numbers)) + 2 * (6 * 4 * 4) * (1 + is_counted)


class InPlace(torch.autograd.Function):
    """A mean of squares that writes its gradient over its argument, as fused kernels do."""

    @staticmethod
    def forward(ctx: Any, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        error = outputs.detach() - targets
        outputs.data.copy_(2 * error / error.numel())
        ctx.save_for_backward(outputs)
        return error.square().mean()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (outputs,) = ctx.saved_tensors
        return outputs.mul_(gradient), None


def test_a_loss_that_writes_its_gradient_over_the_outputs() -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = InPlace.apply(outputs, targets)
        return found

    assert ended(loop(loss=loss, micro=2)) == {"error": "", "words": "", "steps": 3}


def test_clones_in_the_threads_of_replicas() -> None:
    found = loop(normalized()[:-1], layout=lambda model: DataParallel(model, devices.virtual(3)), micro=2)
    assert ended(found)["error"] == ""


def test_a_clone_ends_with_its_last_user() -> None:
    clones, tensor = Clones(), torch.randn(100)
    clone = weakref.ref(clones.of(tensor).untyped_storage())
    gc.collect()
    assert clone() is None
