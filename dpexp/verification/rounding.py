"""Rounding: how far a single device is from itself when its narrow arithmetic is rounded otherwise.

A forward may compute in float32 although the model is in float64, and some operators have no float64 kernel.
What two layouts may then differ by is measured: the single device trains twice, and the second time every
operation reads its float32 inputs one bit away from where they are.

Source: Vignes, "A stochastic arithmetic for reliable scientific computation", 1993.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from dpexp import tensors
from dpexp.data.batch import Batch
from dpexp.strategies.placed import UNOBSERVED, StepObserver
from dpexp.training.trainer import Trainer

NARROWER = {torch.float64: torch.float32, torch.float32: torch.bfloat16}
"""The type to verify in next, where an operator has no kernel for a type."""
MARGIN = 10
"""The limit is so many times the measured difference, which is of two of many possible roundings."""
MOST = {torch.float64: 1e-4, torch.float32: 1e-3, torch.bfloat16: 0.1}
"""The largest limit: wrong semantics make errors of 1e-3 and more."""


class OtherwiseRounded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Moves what operations read, in any type but float64, by a random part of its last bit."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rng = torch.Generator().manual_seed(0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = func._schema
        if any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns):
            return func(*args, **(kwargs or {}))  # a view
        pairs = zip(schema.arguments, args, strict=False)
        moved = [arg if each.is_write else tensors.map_tensors(self._moved, arg) for each, arg in pairs]
        return func(*moved, **(kwargs or {}))

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        is_narrow = tensor.is_floating_point() and tensor.dtype != torch.float64
        if not is_narrow or tensor.layout != torch.strided:
            return tensor
        noise = torch.rand(tensor.shape, generator=self._rng, dtype=torch.float64) * 2 - 1
        return (tensor.double() * (1 + torch.finfo(tensor.dtype).eps * noise)).to(tensor.dtype)


class OtherwiseRoundedTrainer(Trainer):
    """The steps of a single device, rounded otherwise."""

    def step(self, batch: Batch, observer: StepObserver = UNOBSERVED) -> torch.Tensor:
        with OtherwiseRounded():
            return super().step(batch, _ExactObserver(observer))


@dataclass(frozen=True)
class _ExactObserver(StepObserver):
    """What an observer does is not rounded otherwise."""

    observer: StepObserver

    def forward_ended(self, outputs: Any) -> None:
        with _disable_current_modes():
            self.observer.forward_ended(outputs)

    def loss_ended(self, loss: torch.Tensor) -> None:
        with _disable_current_modes():
            self.observer.loss_ended(loss)

    def backward_ended(self) -> None:
        with _disable_current_modes():
            self.observer.backward_ended()
