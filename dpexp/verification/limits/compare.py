"""Compare: the relative error of each tensor, and of each part of it by magnitude (``parts``).

    error of a part      ||found - expected|| / ||expected||

So nothing hides beside a mask, a large logit or a scaled head. What a cancellation has left is a part, too:
how far rounding may set it apart is measured (``rounding``). Integers are equal or wrong.

A part that is zero but for rounding cannot be judged by itself: it is judged by its size beside its tensor,
and such a tensor beside its neighbours. Where rounding is large beside these, too, nothing can be said.
"""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from dpexp.verification.limits.norms import Tensors, distance, magnitude, not_nan
from dpexp.verification.limits.parts import Parts, parts_of

HIDES = 0.1
"""Where rounding may change so much of a tensor, it hides a real error of this size."""

NEAR, BITS = 2.0**40, 8
"""A number may be off by so many last bits of numbers that are at most so many times as large, or by so many
times what these are off by: of a sum that cancels, a small number is left."""


@dataclass(frozen=True)
class Difference:
    """The relative error of one tensor of a kind, and its limit.

    ``apart`` is the absolute error. ``is_comparable`` is False where rounding explains it and would also
    hide a real error (``HIDES``).
    """

    kind: str
    error: float
    tensor: str = ""
    step: int = 0
    limit: float = math.inf
    apart: float = math.inf
    is_comparable: bool = True

    @property
    def ratio(self) -> float:
        """The error as a multiple of its limit: above 1 it is not rounding."""
        return self.error / self.limit if self.error else 0.0


Noise = Mapping[tuple[str, int, str], Sequence[float]]
"""How far rounding may set each part of a tensor apart, by kind, step and tensor."""


@dataclass(frozen=True)
class Limits:
    """Errors up to ``tolerance`` are rounding, and so are those up to the ``noise`` that was measured.

    ``negligible``: a tensor so small beside its neighbours may be nothing but rounding.
    ``eps`` is the last bit of the type: beside larger numbers, numbers are exact to those numbers' last bits.
    """

    tolerance: float
    negligible: float = 1.0
    noise: Noise = field(default_factory=dict)
    eps: float = sys.float_info.epsilon

    def judge(self, kind: str, step: int, tensors: Mapping[str, Parts]) -> dict[str, Difference]:
        """The error of each tensor: that of the part with the largest multiple of its limit."""
        beside = _neighbours(kind, tensors)
        return {
            name: self._worst(kind, step, name, each, beside[_group(kind, name)])
            for name, each in tensors.items()
        }

    def largest(
        self, kind: str, step: int, tensors: Mapping[str, Parts]
    ) -> tuple[Difference | None, Difference | None]:
        """The first of those with the largest multiple of its limit, and the first that is not comparable.

        None where there is no such tensor.
        """
        beside, found, hidden, top = _neighbours(kind, tensors), None, None, (-1.0, -1.0)
        for name, each in tensors.items():
            if len(each.norms) == 1 and not self.noise.get((kind, step, name)):  # nothing widens its limit
                error = _ratio(each.apart[0], each.norms[0])
                if (error / self.tolerance if error else 0.0, error) <= top:
                    continue
            difference = self._worst(kind, step, name, each, beside[_group(kind, name)])
            if not difference.is_comparable:
                hidden = hidden or difference
            elif (difference.ratio, difference.error) > top:
                found, top = difference, (difference.ratio, difference.error)
        return found, hidden

    def _worst(self, kind: str, step: int, name: str, tensor: Parts, neighbour: float) -> Difference:
        noise = [*self.noise.get((kind, step, name), ()), *[0.0] * len(tensor.norms)]
        total, of_parts = math.hypot(*tensor.norms), []
        each_part = zip(tensor.norms, tensor.apart, tensor.counts, noise, strict=False)
        for norm, apart, count, measured in each_part:
            beside = min(self._beside(tensor, norm, count), self.negligible * norm)  # more must be measured
            size, allowed, is_comparable = norm, max(beside, measured), True
            if apart <= self.tolerance * norm:
                allowed = 0.0
            elif apart <= beside:
                size, allowed = beside / self.tolerance, 0.0
            elif measured:
                larger = [each for each in (norm, total) if measured <= HIDES * each]
                is_nothing = not larger and math.hypot(total, measured) <= self.negligible * neighbour
                size = larger[0] if larger else neighbour if is_nothing else total
                allowed = max(allowed, self.tolerance * size)
                is_comparable = apart > allowed or bool(larger) or is_nothing
            limit = max(self.tolerance, _ratio(allowed, size))
            of_parts.append(Difference(kind, _ratio(apart, size), name, step, limit, apart, is_comparable))
        hidden = next((each for each in of_parts if not each.is_comparable), None)
        found = worst(of_parts)
        return hidden if hidden is not None and found.ratio <= 1 else found

    def _beside(self, tensor: Parts, norm: float, count: int) -> float:
        """How far apart a part may be, since each of its numbers is as exact as larger ones beside it."""
        size, off = norm / math.sqrt(count), 0.0
        for other, apart, numbers in zip(tensor.norms, tensor.apart, tensor.counts, strict=False):
            if size < other / math.sqrt(numbers) <= NEAR * size:
                rounded = max(self.eps * other, min(apart, self.tolerance * other))
                off = max(off, rounded / math.sqrt(numbers))
        return BITS * off * math.sqrt(count)


def noise_of(kinds: Mapping[str, Mapping[str, Parts]], step: int, least: float = 0.0) -> Noise:
    """How far apart the parts are. Up to ``least`` of their size, or of their neighbours', they are equal."""
    noise = dict[tuple[str, int, str], list[float]]()
    for kind, tensors in kinds.items():
        beside = _neighbours(kind, tensors)
        for name, each in tensors.items():
            equal = [least * max(norm, beside[_group(kind, name)]) if least else 0.0 for norm in each.norms]
            pairs = zip(each.apart, equal, strict=True)
            noise[kind, step, name] = [apart if apart > limit else 0.0 for apart, limit in pairs]
    return noise


def _group(kind: str, name: str) -> str:
    """Tensors that are neighbours: of buffers and of the optimizer's state those of one name, else all."""
    return name.replace(": ", ".").rpartition(".")[2] if kind in ("buffers", "optimizer") else ""


def _neighbours(kind: str, tensors: Mapping[str, Parts]) -> dict[str, float]:
    """The root mean square of the norms of each group of neighbours."""
    norms: dict[str, list[float]] = {}
    for name, each in tensors.items():
        norms.setdefault(_group(kind, name), []).append(math.hypot(*each.norms))
    return {group: math.hypot(*of_group) / math.sqrt(len(of_group)) for group, of_group in norms.items()}


def worst(differences: Iterable[Difference]) -> Difference:
    """The one with the largest multiple of its limit."""
    return max(differences, key=lambda each: (each.ratio, each.error))


def relative_error(found: Tensors, expected: Tensors) -> float:
    """The largest relative error of a part of a tensor; infinite where shapes differ."""
    judged = Limits(1.0).judge("", 0, parts_of(found, expected))
    return max((each.error for each in judged.values()), default=0.0)


def whole_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """``||found - expected|| / ||expected||`` of the whole tensor, where small numbers may hide."""
    return _ratio(distance(found, expected), magnitude(expected))


def _ratio(apart: float, size: float) -> float:
    if not apart:
        return 0.0
    return not_nan(apart / size) if size else math.inf
