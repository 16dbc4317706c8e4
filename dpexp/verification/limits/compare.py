"""Compare: the relative error of each tensor, and of each part of it by magnitude.

    mask -3.4e38 -3.4e38 | 0.3 1.2 -0.7 | 1e-17    <- what is expected, by size: three parts
    error of a part      ||found - expected|| / ||expected||

So nothing hides beside a mask, a large logit or a scaled head. What a cancellation has left is a part, too:
how far rounding may set it apart is measured (``rounding``). Integers are equal or wrong.
"""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch

_CHUNK = 1 << 22
"""Numbers that are compared at once: the difference of large tensors is never in memory as a whole."""

_GAP, _SPAN = 10, 30
"""Between two parts of a tensor is no number within so many powers of two; a part spans so many at most."""

NEAR, BITS = 2.0**40, 8
"""A number may be off by so many last bits of numbers that are at most so many times as large, or by so many
times what these are off by: of a sum that cancels, a small number is left."""

_FRACTION, _POWERS = 52, 1 << 11
"""The bits of a float64 that are not its sign and its power of two, and how many of these there are."""

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Difference:
    """The relative error of one tensor of a kind, and its limit.

    ``apart`` is the absolute error, ``share`` its ratio to the norm of all tensors of the kind.
    """

    kind: str
    error: float
    tensor: str = ""
    step: int = 0
    limit: float = math.inf
    apart: float = math.inf
    share: float = math.inf

    @property
    def ratio(self) -> float:
        """The error as a multiple of its limit: above 1 it is not rounding."""
        return self.error / self.limit if self.error else 0.0


@dataclass(frozen=True)
class Parts:
    """One tensor by magnitude: the norm of each part, and how far apart what was found is in it.

    ``counts``: how many numbers each has, where there are several.
    """

    norms: Sequence[float]
    apart: Sequence[float]
    counts: Sequence[int] = (1,)


Noise = Mapping[tuple[str, int, str], Sequence[float]]
"""How far rounding may set each part of a tensor apart, by kind, step and tensor."""


@dataclass(frozen=True)
class Limits:
    """Errors up to ``tolerance`` are rounding, and so are those up to the ``noise`` that was measured.

    Noise counts up to ``most`` of the norm of all tensors of the kind. ``eps`` is the last bit of the type:
    beside larger numbers, numbers are exact to those numbers' last bits.
    """

    tolerance: float
    most: float = 1.0
    noise: Noise = field(default_factory=dict)
    eps: float = sys.float_info.epsilon

    def judge(self, kind: str, step: int, tensors: Mapping[str, Parts]) -> dict[str, Difference]:
        """The error of each tensor: that of the part with the largest multiple of its limit."""
        whole = math.hypot(*(norm for each in tensors.values() for norm in each.norms))
        return {name: self._worst(kind, step, name, each, whole) for name, each in tensors.items()}

    def _worst(self, kind: str, step: int, name: str, tensor: Parts, whole: float) -> Difference:
        noise = [*self.noise.get((kind, step, name), ()), *[0.0] * len(tensor.norms)]
        of_parts = []
        each_part = zip(tensor.norms, tensor.apart, tensor.counts, noise, strict=False)
        for norm, apart, count, measured in each_part:
            beside = min(self._beside(tensor, norm, count), self.most * norm)  # more must be measured
            allowed = beside if apart <= beside else min(max(measured, beside), self.most * whole)
            is_rounding = apart <= allowed and (apart <= beside or allowed > self.most * norm)
            size = max(norm, allowed / self.tolerance) if is_rounding else norm  # all that is left
            limit = min(max(self.tolerance, _ratio(allowed, size)), max(self.tolerance, self.most))
            error, share = _ratio(apart, size), _ratio(apart, whole)
            of_parts.append(Difference(kind, error, name, step, limit, apart, share))
        return worst(of_parts)

    def _beside(self, tensor: Parts, norm: float, count: int) -> float:
        """How far apart a part may be, since each of its numbers is as exact as larger ones beside it."""
        size, off = norm / math.sqrt(count), 0.0
        for other, apart, numbers in zip(tensor.norms, tensor.apart, tensor.counts, strict=False):
            if size < other / math.sqrt(numbers) <= NEAR * size:
                rounded = max(self.eps * other, min(apart, self.tolerance * other))
                off = max(off, rounded / math.sqrt(numbers))
        return BITS * off * math.sqrt(count)


def worst(differences: Iterable[Difference]) -> Difference:
    """The one with the largest multiple of its limit."""
    return max(differences, key=lambda each: (each.ratio, each.error))


def parts_of(found: Tensors, expected: Tensors) -> dict[str, Parts]:
    """Every tensor that one of the two has, by parts. A missing one counts as zeros."""
    names = [*expected, *(name for name in found if name not in expected)]
    return {name: parts(found.get(name), expected.get(name)) for name in names}


def parts(found: torch.Tensor | None, expected: torch.Tensor | None) -> Parts:
    """Infinitely far apart are other shapes and kinds of numbers, and NaN or infinity on one side only."""
    if found is None or expected is None:
        present = expected if found is None else found
        size = magnitude(present) if present is not None else 0.0
        return Parts((0.0 if expected is None else size,), (size,))
    if found.shape != expected.shape or found.is_floating_point() != expected.is_floating_point():
        return Parts((magnitude(expected),), (math.inf,))
    found, expected = _dense(found, expected)
    if torch.equal(found.cpu(), expected.cpu()):
        return Parts((magnitude(expected),), (0.0,))
    if not (found.is_floating_point() or found.is_complex()):
        size = max(1.0, magnitude(expected))
        return Parts((size,), (max(size, distance(found, expected)),))
    return _by_magnitude(found, expected)


def _by_magnitude(found: torch.Tensor, expected: torch.Tensor) -> Parts:
    powers = [_powers(part) for part in _chunks(expected)]
    starts = _starts(torch.stack([torch.bincount(each, minlength=_POWERS) for each in powers]).sum(0))
    if len(starts) == 1:
        return Parts((magnitude(expected),), (distance(found, expected),))
    norms, apart, counts = [0.0] * len(starts), [0.0] * len(starts), [0] * len(starts)
    for a, b, of_numbers in zip(_chunks(found), _chunks(expected), powers, strict=True):
        owners = torch.bucketize(of_numbers, torch.tensor(starts), right=True) - 1
        difference = _difference(a, b)
        for part in range(len(starts)):
            chosen = owners == part
            norms[part] = math.hypot(norms[part], _finite_norm(b[chosen]))
            apart[part] = math.hypot(apart[part], _norm(difference[chosen]))
            counts[part] += int(chosen.sum())
    return Parts([_bounded(norm) for norm in norms], [_not_nan(each) for each in apart], counts)


def _powers(part: torch.Tensor) -> torch.Tensor:
    """The power of two of each number, from 1 on, as its bits have it; 0 for zeros and what is not finite."""
    powers = part.abs().view(torch.int64) >> _FRACTION
    return powers.masked_fill_(powers == _POWERS - 1, 0)


def _starts(counts: torch.Tensor) -> list[int]:
    """The lowest power of two of each part, the smallest first; zeros are a part."""
    used: list[int] = counts.nonzero().flatten().tolist()
    starts, top = list[int](), used[-1]
    for below, power in reversed(list(pairwise(used))):
        if below == 0 or power - below > _GAP or top - below > _SPAN:
            starts.insert(0, power)
            top = below
    return [used[0], *starts]


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
    return _not_nan(apart / size) if size else math.inf


def distance(found: torch.Tensor | None, expected: torch.Tensor | None) -> float:
    """``||found - expected||``; infinite for other shapes and for NaN on one side only."""
    if found is None or expected is None:
        present = expected if found is None else found
        return magnitude(present) if present is not None else 0.0
    if found.shape != expected.shape:
        return math.inf
    pairs = zip(*map(_chunks, _dense(found, expected)), strict=True)
    return _not_nan(math.hypot(*(_norm(_difference(a, b)) for a, b in pairs)))


def magnitude(tensor: torch.Tensor) -> float:
    """The norm over the finite entries."""
    return _bounded(math.hypot(*map(_finite_norm, _chunks(tensor))))


def _dense(found: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as dense tensors; of two sparse ones the rows that either has."""
    if found.is_sparse and expected.is_sparse and found.sparse_dim() == expected.sparse_dim() == 1:
        both = [each.cpu().coalesce() for each in (found, expected)]
        rows = torch.unique(torch.cat([each.indices()[0] for each in both]))
        found, expected = (each.index_select(0, rows) for each in both)
    found, expected = (each.to_dense() if each.is_sparse else each for each in (found, expected))
    return found, expected


def _difference(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Zero where both are the same infinity, or NaN."""
    difference = found - expected
    if bool(difference.isfinite().all()):
        return difference
    return difference.masked_fill_((found == expected) | (found.isnan() & expected.isnan()), 0)


def _finite_norm(part: torch.Tensor) -> float:
    norm = _norm(part)
    return norm if math.isfinite(norm) else _norm(torch.where(part.isfinite(), part, 0))


def _norm(tensor: torch.Tensor) -> float:
    """The norm, also of numbers whose squares are not in the range of float64."""
    norm = float(torch.linalg.vector_norm(tensor))
    if norm and math.isfinite(norm):
        return norm
    largest = float(tensor.abs().max()) if tensor.numel() else 0.0
    usual = 0 < largest < math.inf
    return largest * float(torch.linalg.vector_norm(tensor / largest)) if usual else largest


def _bounded(norm: float) -> float:
    return min(norm, sys.float_info.max)


def _not_nan(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    tensor = tensor.detach()
    flat = tensor.coalesce().values() if tensor.is_sparse else tensor
    for part in torch.split(flat.reshape(-1), _CHUNK):
        wide = torch.complex128 if part.is_complex() else torch.float64
        yield part.to("cpu", wide)
