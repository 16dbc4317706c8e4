"""Rounding: how far a single device is from itself when its narrow arithmetic is rounded otherwise.

A forward may compute in float32 although the model is in float64, some operators have no float64 kernel, and
some models lose digits in float64, too. What two layouts may then differ by is measured: the single device
trains again, and every operation reads its inputs up to one bit away from where they are.

Source: Vignes, "A stochastic arithmetic for reliable scientific computation", 1993.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from dpexp import tensors
from dpexp.data.batch import Batch
from dpexp.strategies.placed import UNOBSERVED, StepObserver
from dpexp.training.trainer import Trainer
from dpexp.verification.limits.compare import Noise

NARROWER = {torch.float64: torch.float32, torch.float32: torch.bfloat16}
"""The type to verify in next, where an operator has no kernel for a type."""
MARGIN, DRAWS = 10, 3
"""The limit is so many times the largest of so many measured differences, of all possible roundings."""
OF_OTHER_KERNELS = 8
"""An accelerator's kernels add in other orders than the host's: so many last bits are moved.

Measured with DenseNets whose convolutions were off by a random 3e-7: with one bit 4 of 10 were refused, with
four and with eight none of 6; with convolutions off by 1e-6, 6 of 6, and none of 4 with eight bits.
"""
CERTAIN = 100
"""An error of so many times a limit that was measured once is not rounding."""
NEGLIGIBLE = {torch.float64: 1e-4, torch.float32: 1e-3, torch.bfloat16: 0.1}
"""A tensor that is zero but for rounding is at most so large beside its neighbours."""


def largest(draws: Iterable[Noise], margin: float = MARGIN) -> Noise:
    """The noise of several draws as one: of each part of a tensor the largest, with the margin."""
    noise: dict[tuple[str, int, str], list[float]] = {}
    for draw in draws:
        for key, apart in draw.items():
            known, scaled = noise.get(key, [0.0] * len(apart)), (margin * each for each in apart)
            noise[key] = [max(pair) for pair in zip_longest(known, scaled, fillvalue=0.0)]
    return noise


def of_rounding(noise: Noise, without_draw: Noise) -> dict[tuple[str, int, str], list[float]]:
    """The noise without that of tensors which differ although nothing is rounded otherwise.

    A model that counts its calls, say, is not the same in two steps from the same state.
    """
    return {
        key: [0.0] * len(apart) if any(without_draw.get(key, ())) else [*apart]
        for key, apart in noise.items()
    }


_FACTORS = 1 << 18
"""So many random numbers of each type are drawn: of them each piece of a tensor reads some in a row."""


class OtherwiseRounded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Moves what operations read by a random part of its last ``bits``; ``draw`` numbers the random numbers.

    Small whole numbers stay: they are exact, and masks are made by comparing them.
    """

    def __init__(self, draw: int = 0, bits: int = 1) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._bits = bits
        self._rng, self._places = torch.Generator().manual_seed(draw), random.Random(draw)
        self._factors: dict[torch.dtype, torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = func._schema
        if func.namespace == "c10d":  # a collective, which writes to what it is given
            return func(*args, **(kwargs or {}))
        if any(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns):
            return func(*args, **(kwargs or {}))  # a view
        pairs = zip(schema.arguments, args, strict=False)
        moved = [arg if _is_written(each) else tensors.map_tensors(self._moved, arg) for each, arg in pairs]
        return func(*moved, **(kwargs or {}))

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.layout != torch.strided:
            return tensor
        moved = tensor.clone()  # with the strides, which some operations prescribe, and without gaps
        numbers = torch.view_as_real(moved) if moved.is_complex() else moved
        numbers = numbers.as_strided((numbers.numel(),), (1,))
        factors = self._factors_of(numbers.dtype)
        for part in torch.split(numbers, _FACTORS // 2):
            first = self._places.randrange(_FACTORS - len(part))
            eps = torch.finfo(part.dtype).eps
            change = factors[first : first + len(part)] * part * (self._bits * eps)
            part.add_(change.masked_fill_((part == part.trunc()) & (part.abs() < eps**-0.5), 0))
        return moved

    def _factors_of(self, dtype: torch.dtype) -> torch.Tensor:
        if dtype not in self._factors:
            drawn = torch.rand(_FACTORS, generator=self._rng, dtype=torch.float64)
            self._factors[dtype] = drawn.mul_(2).sub_(1).to(dtype)
        return self._factors[dtype]


def _is_written(argument: Any) -> bool:
    """Whether an operation writes to it; the schemas of batch norms do not say so of their statistics."""
    return bool(argument.is_write) or argument.name.startswith("running_")


class OtherwiseRoundedTrainer(Trainer):
    """The steps of a single device, rounded otherwise by a ``draw``, or as usual (None)."""

    draw: int | None = 0
    bits: int = 1

    def step(self, batch: Batch, observer: StepObserver = UNOBSERVED) -> torch.Tensor:
        if self.draw is None:
            return super().step(batch, observer)
        with OtherwiseRounded(self.draw, self.bits):
            return super().step(batch, _ExactObserver(observer))

    def evaluate(self, batch: Batch) -> Any:
        if self.draw is None:
            return super().evaluate(batch)
        with OtherwiseRounded(self.draw, self.bits):
            return super().evaluate(batch)


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
