"""Compare: the relative error of each tensor, in parts of like magnitude, in float64.

    mask -3.4e38 -3.4e38 | 0.3 1.2 -0.7 | 1e-17    <- what is expected, by size: three parts
    error of a part        ||found - expected|| / ||expected||

The limit: the error of a part is at most the tolerance, or what a single device that rounds otherwise differs
from itself by, with a margin (``rounding``). So nothing hides beside a mask, a large logit or a scaled head.
Integers are equal or wrong. A part that is zero but for rounding is judged by its size beside its tensor, and
such a tensor beside its neighbours. Where rounding is large beside these, too, nothing can be said.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeAlias

import torch

from dpexp.tensors import chunks, wide

Tensors: TypeAlias = Mapping[str, torch.Tensor]
Array = Any

HIDES = 0.1
"""Where rounding may change so much of a tensor, it hides a real error of this size.

Chosen: a factor of two, or a shard that is missing, is larger."""
GAP, SPAN = 10, 30
"""Between two parts of a tensor is no number within so many powers of two; a part spans so many at most.

Chosen: a mask of -1e9 or more is 2**30 times the logits beside it."""
NEAR, BITS = 2.0**40, 8
"""A number may be off by so many last bits of numbers that are at most so many times as large, or by so many
times what these are off by: of a sum that cancels, a small number is left. Of a million numbers one was 2**10
times nearer to its limit than their norm is."""


@dataclass(frozen=True)
class Parts:
    """One tensor by magnitude: of each part the norm, how far off what was found is, how many numbers."""

    norms: Sequence[float]
    apart: Sequence[float]
    counts: Sequence[int] = (1,)

    def rms(self, part: int) -> float:
        """The size of its numbers."""
        return self.norms[part] / math.sqrt(self.counts[part])

    def scale(self, part: int, other: int) -> float:
        """How much larger a norm is over as many numbers as another part has, each alike."""
        return math.sqrt(self.counts[other] / self.counts[part])


Kinds: TypeAlias = Mapping[str, Mapping[str, Parts]]
"""Tensors by kind (outputs, loss, gradients, buffers, parameters, updates, optimizer) and name."""
Noise: TypeAlias = Mapping[tuple[str, str], Sequence[float]]
"""How far rounding may set each part of a tensor apart, by kind and name."""


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


@dataclass(frozen=True)
class Limits:
    """Errors up to ``tolerance`` are rounding, and so are those up to the ``noise`` that was measured.

    ``negligible``: a tensor so small beside its neighbours may be nothing but rounding.
    ``eps`` is the last bit of the type: beside larger numbers, numbers are exact to those numbers' last bits.
    Numbers below ``least`` come of ones that have no room for all of their bits, and are zero.
    """

    tolerance: float
    negligible: float = 1.0
    eps: float = sys.float_info.epsilon
    least: float = sys.float_info.min / sys.float_info.epsilon
    noise: Noise = field(default_factory=dict)

    @classmethod
    def of(cls, dtype: torch.dtype, tolerance: float, negligible: float) -> Limits:
        """Those of numbers of this type."""
        finfo = torch.finfo(dtype)
        is_half = dtype == torch.float16  # of which half of the numbers are so small
        least = 0.0 if is_half else finfo.tiny / finfo.eps
        return cls(tolerance, negligible, finfo.eps, least)

    def judge(self, kind: str, step: int, tensors: Mapping[str, Parts]) -> dict[str, Difference]:
        """The error of each tensor: that of the part with the largest multiple of its limit."""
        beside = _neighbours(kind, tensors)
        return {
            name: self._worst(kind, step, name, each, beside[_group(kind, name)])
            for name, each in tensors.items()
        }

    def _worst(self, kind: str, step: int, name: str, tensor: Parts, neighbour: float) -> Difference:
        noise = [*self.noise.get((kind, name), ()), *[0.0] * len(tensor.norms)]
        total, of_parts = math.hypot(*tensor.norms), []
        smallest = min((i for i, norm in enumerate(tensor.norms) if norm), key=tensor.rms, default=None)
        for part, (norm, apart) in enumerate(zip(tensor.norms, tensor.apart, strict=True)):
            beside, measured = self._beside(tensor, part, smallest), noise[part]
            if not norm and smallest is not None:  # zeros are as exact as the numbers next to them
                measured = max(measured, noise[smallest] * tensor.scale(smallest, part))
            size, allowed, is_comparable = norm, max(beside, measured) if norm else measured, True
            if apart <= self.tolerance * norm:
                allowed = 0.0
            elif apart <= beside:
                size, allowed = beside / self.tolerance, 0.0
            elif measured or not total:
                larger = [each for each in (norm, total) if each and measured <= HIDES * each]
                is_nothing = not larger and math.hypot(total, measured) <= self.negligible * neighbour
                size = larger[0] if larger else neighbour if is_nothing else total
                allowed = max(allowed, self.tolerance * size)
                is_comparable = apart > allowed or bool(larger) or is_nothing
            limit = max(self.tolerance, ratio(allowed, size))
            of_parts.append(Difference(kind, ratio(apart, size), name, step, limit, apart, is_comparable))
        hidden = next((each for each in of_parts if not each.is_comparable), None)
        found = worst(of_parts)
        return hidden if hidden is not None and found.ratio <= 1 else found

    def _beside(self, tensor: Parts, part: int, smallest: int | None) -> float:
        """How far apart a part may be, since each of its numbers is as exact as larger ones beside it.

        Of zeros these are the ``smallest`` others.
        """
        size, off, least = tensor.rms(part), 0.0, self.least * math.sqrt(tensor.counts[part])
        for other, (norm, apart) in enumerate(zip(tensor.norms, tensor.apart, strict=True)):
            if size < tensor.rms(other) <= NEAR * size or (not size and other == smallest):
                rounded = max(self.eps * norm, min(apart, self.tolerance * norm))
                off = max(off, rounded * tensor.scale(other, part))
        return max(least, min(BITS * off, self.negligible * tensor.norms[part]) if size else BITS * off)


def noise_of(kinds: Kinds, least: float = 0.0) -> dict[tuple[str, str], list[float]]:
    """How far apart the parts are. Up to ``least`` of their size, or of their neighbours', they are equal."""
    noise = dict[tuple[str, str], list[float]]()
    for kind, tensors in kinds.items():
        beside = _neighbours(kind, tensors)
        for name, each in tensors.items():
            equal = [least * max(norm, beside[_group(kind, name)]) if least else 0.0 for norm in each.norms]
            pairs = zip(each.apart, equal, strict=True)
            noise[kind, name] = [apart if apart > limit else 0.0 for apart, limit in pairs]
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


def parts_of(found: Tensors, expected: Tensors) -> dict[str, Parts]:
    """Every tensor of any shape that one of the two has, by parts. A missing one counts as zeros."""
    names = [*expected, *(name for name in found if name not in expected)]
    return {name: parts(found.get(name), expected.get(name)) for name in names}


def parts(found: torch.Tensor | None, expected: torch.Tensor | None) -> Parts:
    """Infinitely far apart are other shapes and kinds of numbers, and NaN or infinity on one side only."""
    return spectrum(found, expected).parts


# --- by magnitude ---


@dataclass(frozen=True)
class Spectrum:
    """One tensor, or a shard of it, by the power of two of what is expected, of plain numbers.

    ``powers``: how many numbers are of that power, their norm, and how far off in all what was found is.
    Those of shards that have no number in common can be added.
    """

    powers: Mapping[int, tuple[int, float, float]]

    @classmethod
    def of_one(cls, count: int, size: float, apart: float) -> Spectrum:
        """That of so many numbers which are judged together, as those of an equal shard, or of no power."""
        if not count:
            return cls({})
        mean = size / math.sqrt(count)
        return cls({math.frexp(mean)[1] if mean else _LOWEST: (count, size, apart)})

    def __add__(self, other: Spectrum) -> Spectrum:
        powers = dict(self.powers)
        for power, (count, size, apart) in other.powers.items():
            before = powers.get(power, (0, 0.0, 0.0))
            powers[power] = before[0] + count, math.hypot(before[1], size), math.hypot(before[2], apart)
        return Spectrum(powers)

    @property
    def parts(self) -> Parts:
        """Its parts, the smallest first."""
        powers = self.powers or {_LOWEST: (1, 0.0, 0.0)}
        used = sorted(powers)
        starts = _starts(used)
        of_parts: list[list[tuple[int, float, float]]] = [[] for _ in starts]
        for power in used:
            of_parts[bisect_right(starts, power) - 1].append(powers[power])
        counts, sizes, apart = zip(*(tuple(zip(*part, strict=True)) for part in of_parts), strict=True)
        norms = [min(math.hypot(*each), sys.float_info.max) for each in sizes]
        totals = [sum(each) for each in counts] if len(starts) > 1 else (1,)
        return Parts(norms, [math.hypot(*each) for each in apart], totals)


def spectrum(found: torch.Tensor | None, expected: torch.Tensor | None) -> Spectrum:
    """That of tensors of any shape, on their device, a chunk at a time; a missing one counts as zeros.

    Numbers are judged together where only one of the tensors is there, where they are equal, integers, or of
    other shapes or kinds: these are infinitely far apart.
    """
    if found is None or expected is None:
        present = expected if found is None else found
        if present is None:
            return Spectrum.of_one(0, 0.0, 0.0)
        size = magnitude(present)
        return Spectrum.of_one(present.numel(), 0.0 if expected is None else size, size)
    count = expected.numel()
    kinds = [(each.shape, each.is_floating_point(), each.is_complex()) for each in (found, expected)]
    if kinds[0] != kinds[1]:
        return Spectrum.of_one(max(1, count), magnitude(expected), math.inf)
    pairs = list(chunks(*dense(found, expected)))
    if all(_are_equal(*pair) for pair in pairs):
        return Spectrum.of_one(count, magnitude(expected), 0.0)
    if not expected.is_floating_point() and not expected.is_complex():
        size = max(1.0, magnitude(expected))
        return Spectrum.of_one(count, size, max(size, distance(found, expected)))
    return _by_bits(pairs) or _by_power(pairs)


Pairs: TypeAlias = Sequence[tuple[torch.Tensor, ...]]
"""Of what was found and of what is expected some numbers at a time, as vectors."""


def _by_bits(pairs: Pairs) -> Spectrum | None:
    """By the exponents in float64; None of numbers whose squares are not in its range."""
    sums, lost = torch.zeros(0), []
    for pair in pairs:
        found, expected = _wide(*pair)
        size, off = (each.abs() if each.is_complex() else each for each in (expected, found - expected))
        power = (size.view(torch.int64) >> 52).bitwise_and_(2047)  # without the sign; 0 is that of zeros
        lanes = 1 if power.device.type == "cpu" else _LANES
        if lanes > 1:  # else its threads wait for one another, as few powers are in use
            power += torch.arange(len(power), device=power.device) % lanes * _POWERS
        if not len(sums):
            sums = torch.zeros(3, lanes * _POWERS, dtype=size.dtype, device=size.device)
        columns = torch.ones_like(size), size.square(), off.square()
        for row, column in zip(sums, columns, strict=True):
            row.scatter_add_(0, power, column)
        if max(each.element_size() for each in pair) >= 8:  # squares of others are in the range
            sides = [torch.count_nonzero(each) for each in (size, columns[1], off, columns[2])]
            lost.append(sides[0] - sides[1] + sides[2] - sides[3])
    rows = _used(sums.view(3, -1, _POWERS).sum(1))
    if any(lost) or not all(not each or _LEAST < each < math.inf for _, *row in rows for each in row):
        return None
    return _of_rows(
        [(index, count, math.sqrt(size), math.sqrt(off)) for index, count, size, off in rows], 1022
    )


def _by_power(pairs: Pairs) -> Spectrum:
    """Of any numbers: those of each power are divided by the largest before they are squared."""
    sums = torch.zeros(0)
    for pair in pairs:
        found, expected = _wide(*pair)
        size, off = expected.abs(), _difference(found, expected).abs()
        size = torch.where(size.isfinite(), size, 0.0)
        power = torch.where(size > 0, torch.frexp(size).exponent + _OFFSET, 0).long()
        if not len(sums):
            sums = torch.zeros(3, _POWERS + _OFFSET, dtype=size.dtype, device=size.device)
        sums[0].scatter_add_(0, power, torch.ones_like(size))
        for row, each in ((1, size), (2, off)):
            top = torch.zeros_like(sums[row]).scatter_reduce_(0, power, each, "amax")
            top = torch.where((top > 0) & top.isfinite(), top, 1.0)
            squares = torch.zeros_like(top).scatter_add_(0, power, (each / top[power]).square_())
            sums[row] = torch.hypot(sums[row], top * squares.sqrt())
    return _of_rows(_used(sums.nan_to_num(math.inf, math.inf)), _OFFSET)


def _used(sums: torch.Tensor) -> list[tuple[int, float, float, float]]:
    """The columns ``(3, powers)`` that have numbers, with their index."""
    used = sums[0].nonzero().squeeze(1)
    return list(zip(used.tolist(), *sums[:, used].tolist(), strict=True))


def _of_rows(rows: Iterable[tuple[int, float, float, float]], offset: int) -> Spectrum:
    return Spectrum({row[0] - offset if row[0] else _LOWEST: (int(row[1]), row[2], row[3]) for row in rows})


def _wide(found: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = wide(expected)
    return wide(found).to(numbers.device), numbers


_LOWEST = -2000
"""The power of two of zeros, and of what is not finite."""
_POWERS, _OFFSET, _LANES, _LEAST = 2048, 1100, 64, 1e-280
"""So many powers float64 has, the least is above ``-_OFFSET``; sums side by side on an accelerator; least sum
of squares of which none is rounded to zero."""


def _starts(used: Sequence[int]) -> list[int]:
    """The lowest power of two of each part, of those in use, the smallest first; zeros are a part."""
    starts, top = list[int](), used[-1]
    for below, power in reversed(list(pairwise(used))):
        if below == _LOWEST or power - below > GAP or top - below > SPAN:
            starts.insert(0, power)
            top = below
    return [used[0], *starts]


# --- norms ---


def relative_error(found: Tensors, expected: Tensors) -> float:
    """The largest relative error of a part of a tensor; infinite where shapes differ."""
    judged = Limits(sys.float_info.epsilon).judge("", 0, parts_of(found, expected))
    return max((each.error for each in judged.values()), default=0.0)


def whole_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """``||found - expected|| / ||expected||`` of tensors of one shape, where small numbers may hide."""
    return ratio(distance(found, expected), magnitude(expected))


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """``||found - expected||``; infinite for other shapes and for NaN on one side only."""
    if found.shape != expected.shape:
        return math.inf
    pairs = chunks(*dense(found, expected))
    return math.hypot(*(_norm(_difference(*_wide(*pair))) for pair in pairs))


def magnitude(tensor: torch.Tensor) -> float:
    """The norm over the finite entries, of any shape."""
    values = tensor.detach()
    values = values.coalesce().values() if values.is_sparse else values
    found = math.hypot(*(_finite_norm(wide(each)) for (each,) in chunks(values)))
    return min(found, sys.float_info.max)


def numbers(tensor: torch.Tensor) -> Array:
    """The numbers of a tensor on the host, in its shape: floating-point ones in float64 or complex128.

    Of a sparse one ``(entries, …)``.
    """
    flat = tensor.detach()
    flat = (flat.coalesce().values() if flat.is_sparse else flat).cpu()
    if flat.is_floating_point() or flat.is_complex():
        flat = flat.to(torch.complex128 if flat.is_complex() else torch.float64)
    return flat.resolve_conj().resolve_neg().numpy()


def dense(found: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as dense tensors in their shapes; of two sparse ones ``(rows, …)``, the rows that either has."""
    if found.is_sparse and expected.is_sparse and found.sparse_dim() == expected.sparse_dim() == 1:
        both = [each.cpu().coalesce() for each in (found, expected)]
        rows = torch.unique(torch.cat([each.indices()[0] for each in both]))
        found, expected = (each.index_select(0, rows) for each in both)
    found, expected = (each.to_dense() if each.is_sparse else each for each in (found, expected))
    return found, expected


def ratio(apart: float, size: float) -> float:
    """Infinite over nothing; of nothing it is 0."""
    if not apart:
        return 0.0
    return apart / size if size else math.inf


def _are_equal(found: torch.Tensor, expected: torch.Tensor) -> bool:
    if found.dtype != expected.dtype:
        found, expected = wide(found), wide(expected)
    return torch.equal(found.to(expected.device), expected)


def _difference(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Zero where both are the same infinity, or NaN."""
    apart = found - expected
    if not bool(apart.isfinite().all()):
        is_same = (found == expected) | (found.isnan() & expected.isnan())
        apart = torch.where(is_same, 0.0, apart)
    return apart


def _finite_norm(numbers: torch.Tensor) -> float:
    found = _norm(numbers)
    return found if math.isfinite(found) else _norm(numbers[numbers.isfinite()])


def _norm(numbers: torch.Tensor) -> float:
    """The norm, also of numbers whose squares are not in the range of float64; infinity for NaN."""
    found = float(torch.linalg.vector_norm(numbers))
    if not 1e-140 < found < math.inf:
        top = float(numbers.abs().max()) if numbers.numel() else 0.0
        found = top * float(torch.linalg.vector_norm(numbers / top)) if 0 < top < math.inf else top
    return math.inf if math.isnan(found) else found
