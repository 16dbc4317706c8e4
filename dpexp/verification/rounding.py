"""Rounding: how far a single device is from itself when its arithmetic is rounded otherwise.

A forward may compute in float32 although the model is in float64, some operators have no float64 kernel,
some models lose digits in float64, too, and an accelerator has kernels of its own. What two layouts may then
differ by is measured: the single device takes the step again, on the accelerator if the layout has one, and
every operation reads its inputs up to one bit away from where they are.

Source: Vignes, "A stochastic arithmetic for reliable scientific computation", 1993.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from dpexp import tensors
from dpexp.strategies.placed import StepObserver
from dpexp.verification.compare import HIDES, Kinds, Limits, Noise, Parts, noise_of
from dpexp.verification.recorder import Computed

NARROWER = {torch.float64: torch.float32, torch.float32: torch.bfloat16}
"""The type to verify in next, where an operator has no kernel for a type."""
MARGIN, DRAWS = 10, 3
"""The limit is so many times the largest of so many measured differences, of all possible roundings.

Chosen: right layouts of Llama, GPT-2, BERT, MobileNet and DenseNet pass, which a constant limit refused."""
TWICE, DRAWS_OF_SHORT = 2, 8
"""A layout in a short type may be so many times as far from float64 as a single device in this type.

So narrow a limit is measured more often than others, until it explains what differs. Chosen: ten times the
rounding of bfloat16, which is 4e-3, would hide an error of 4%."""
CERTAIN = 100
"""An error of so many times a limit that was measured once is not rounding.

Chosen: it saves draws where a layout is off by 1e-3, beside a rounding of 1e-12."""
NEGLIGIBLE = {torch.float64: 1e-4, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}
"""A tensor that is zero but for rounding is at most so large beside its neighbours.

Chosen: it separates gradients of a bias before a batch norm, some last bits of 1, from those of a layer that
learns slowly."""


def largest(draws: Iterable[Noise], margin: float = MARGIN) -> dict[tuple[str, str], list[float]]:
    """The noise of several draws as one: of each part of a tensor the largest, with the margin."""
    noise: dict[tuple[str, str], list[float]] = {}
    for draw in draws:
        for key, apart in draw.items():
            known, scaled = noise.get(key, [0.0] * len(apart)), (margin * each for each in apart)
            noise[key] = [max(pair) for pair in zip_longest(known, scaled, fillvalue=0.0)]
    return noise


def mixed_precision(module: nn.Module) -> Iterator[torch.dtype]:
    """The types of FSDP2's MixedPrecisionPolicy of each of its modules: of parameters and of reductions."""
    sharded: list[Any] = [each for each in module.modules() if hasattr(each, "_get_fsdp_state")]
    for each in sharded:
        policy = each._get_fsdp_state()._mp_policy
        yield from filter(None, (policy.param_dtype, policy.reduce_dtype))


Replay: TypeAlias = Callable[[int | None], Computed]
"""The single device again: rounded otherwise by a draw, or without one."""


def comparisons(
    found: Computed,
    expected: Computed,
    replay: Replay,
    in_float64: Callable[[], Computed | None],
    limits: Limits,
    draws: int,
) -> Iterator[tuple[Kinds, Noise]]:
    """What differs beside one reference after the other, and what rounding explains of it.

        as replayed          the step that is expected: rounding explains nothing
        again                a tensor that differs although nothing is rounded otherwise counts calls, say:
                             nothing is explained of it in what follows
        rounded otherwise    draw after draw, in the layout's type if that is shorter: explains the largest
        in float64           where ``in_float64`` computes it: a tensor over its limit is judged beside it

    Whoever reads this takes the next one only where those before do not explain what differs.
    """
    plain = found.apart(expected)
    yield plain, {}
    exact, again = in_float64(), replay(None)
    is_of_type = again.step.eps == expected.step.eps  # else it computes in a shorter type
    unexplained = noise_of(again.apart(expected), limits.tolerance) if is_of_type else {}
    singles = [expected, again]
    for draw in range(draws):
        singles.append(replay(draw))
        noise = _noise(found, expected, singles, MARGIN if exact is None else TWICE, unexplained)
        if exact is None:
            yield plain, noise
        else:
            of_exact = _noise(found, exact, singles, TWICE, unexplained)
            yield _beside_float64(plain, noise, found.apart(exact), of_exact, limits)


def _beside_float64(
    plain: Kinds, noise: Noise, beside: Kinds, of_exact: Noise, limits: Limits
) -> tuple[Kinds, Noise]:
    """With tensors over their limit beside float64, unless that is so far away that it hides errors."""
    kinds, noise = dict[str, dict[str, Parts]](), dict(noise)
    for kind, of_kind in plain.items():
        judged, kinds[kind] = limits.judge(kind, 0, of_kind), dict(of_kind)
        for name in (name for name in of_kind if judged[name].ratio > 1 and name in beside[kind]):
            key, parts = (kind, name), beside[kind][name]
            if math.hypot(*of_exact[key]) <= HIDES * math.hypot(*parts.norms):
                kinds[kind][name], noise[key] = parts, of_exact[key]
    return kinds, noise


def _noise(
    found: Computed, beside: Computed, singles: Sequence[Computed], margin: float, unexplained: Noise
) -> Noise:
    """How far the single devices are from one reference at most."""
    apart = [noise_of(each.apart(beside)) for each in singles]
    noise = largest([*apart, _last_bits(found, beside, singles[-1])], margin)
    return {key: [0.0] * len(each) if any(unexplained.get(key, ())) else each for key, each in noise.items()}


def _last_bits(found: Computed, beside: Computed, single: Computed) -> Noise:
    """How far the last bit of its type may set each output and the loss apart.

    A scalar in float32 is often rounded to the same number, although what it is computed from is not.
    """
    eps = single.step.eps
    return {
        (kind, name): [eps.get(None if kind == "loss" else name, 0.0) * norm for norm in each.norms]
        for kind, of_kind in found.apart(beside, gradients=False).items()
        if kind in ("outputs", "loss")
        for name, each in of_kind.items()
    }


_FACTORS = 1 << 18
"""So many random numbers of each type are drawn: of them each piece of a tensor reads some in a row."""


class OtherwiseRounded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Moves what operations read by a random part of its last bit; ``draw`` numbers the random numbers.

    Small whole numbers stay: they are exact, and masks are made by comparing them. So do the largest numbers.
    """

    def __init__(self, draw: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rng, self._places = torch.Generator().manual_seed(draw), random.Random(draw)
        self._factors: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}
        self._types = set[torch.dtype]()

    @property
    def narrowest(self) -> torch.dtype | None:
        """The shortest type of the tensors that were moved so far; a scalar may count steps in any type."""
        return max(self._types, key=lambda dtype: torch.finfo(dtype).eps, default=None)

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
        if tensor.dim():
            self._types.add(numbers.dtype)
        factors = self._factors_of(numbers)
        for part in torch.split(numbers, _FACTORS // 2):
            first = self._places.randrange(_FACTORS - len(part))
            eps, most = torch.finfo(part.dtype).eps, torch.finfo(part.dtype).max / 2
            change, size = factors[first : first + len(part)] * part * eps, part.abs()
            stays = (part == part.trunc()) & (size < eps**-0.5) | ~(size < most)
            part.add_(change.masked_fill_(stays, 0))
        return moved

    def _factors_of(self, like: torch.Tensor) -> torch.Tensor:
        key = like.dtype, like.device
        if key not in self._factors:
            drawn = torch.rand(_FACTORS, generator=self._rng, dtype=torch.float64)
            self._factors[key] = drawn.mul_(2).sub_(1).to(like)
        return self._factors[key]


def _is_written(argument: Any) -> bool:
    """Whether an operation writes to it; the schemas of batch norms do not say so of their statistics."""
    return bool(argument.is_write) or argument.name.startswith("running_")


@dataclass(frozen=True)
class ExactObserver(StepObserver):
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
