"""Parts: a tensor by magnitude, and how far apart what was found is in each part.

mask -3.4e38 -3.4e38 | 0.3 1.2 -0.7 | 1e-17    <- what is expected, by size: three parts
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from dpexp.verification.limits.norms import (
    Tensors,
    bounded,
    chunks,
    dense,
    difference,
    distance,
    finite_norm,
    magnitude,
    norm,
    not_nan,
)
from dpexp.verification.limits.small_tensors import Alike, alike, finite_norms, norms, of_pieces

_GAP, _SPAN = 10, 30
"""Between two parts of a tensor is no number within so many powers of two; a part spans so many at most."""

_FRACTION, _POWERS = 52, 1 << 11
"""The bits of a float64 that are not its sign and its power of two, and how many of these there are."""


@dataclass(frozen=True)
class Parts:
    """One tensor by magnitude: the norm of each part, and how far apart what was found is in it.

    ``counts``: how many numbers each has, where there are several.
    """

    norms: Sequence[float]
    apart: Sequence[float]
    counts: Sequence[int] = (1,)


def parts_of(found: Tensors, expected: Tensors) -> dict[str, Parts]:
    """Every tensor that one of the two has, by parts. A missing one counts as zeros."""
    names = [*expected, *(name for name in found if name not in expected)]
    small = {name: each for some in alike(expected, found) for name, each in _of_alike(some)}
    return {name: small.get(name) or parts(found.get(name), expected.get(name)) for name in names}


def parts(found: torch.Tensor | None, expected: torch.Tensor | None) -> Parts:
    """Infinitely far apart are other shapes and kinds of numbers, and NaN or infinity on one side only."""
    if found is None or expected is None:
        present = expected if found is None else found
        size = magnitude(present) if present is not None else 0.0
        return Parts((0.0 if expected is None else size,), (size,))
    if found.shape != expected.shape or found.is_floating_point() != expected.is_floating_point():
        return Parts((magnitude(expected),), (math.inf,))
    found, expected = dense(found, expected)
    if torch.equal(found.cpu(), expected.cpu()):
        return Parts((magnitude(expected),), (0.0,))
    if not (found.is_floating_point() or found.is_complex()):
        size = max(1.0, magnitude(expected))
        return Parts((size,), (max(size, distance(found, expected)),))
    return _by_magnitude(found, expected)


def _by_magnitude(found: torch.Tensor, expected: torch.Tensor) -> Parts:
    powers = [_powers(part) for part in chunks(expected)]
    counted = torch.stack([torch.bincount(each, minlength=_POWERS) for each in powers]).sum(0)
    starts = _starts(counted.nonzero().flatten().tolist())
    if len(starts) == 1:
        return Parts((magnitude(expected),), (distance(found, expected),))
    sizes, apart, counts = [0.0] * len(starts), [0.0] * len(starts), [0] * len(starts)
    for a, b, of_numbers in zip(chunks(found), chunks(expected), powers, strict=True):
        owners = torch.bucketize(of_numbers, torch.tensor(starts), right=True) - 1
        off = difference(a, b)
        for part in range(len(starts)):
            chosen = owners == part
            sizes[part] = math.hypot(sizes[part], finite_norm(b[chosen]))
            apart[part] = math.hypot(apart[part], norm(off[chosen]))
            counts[part] += int(chosen.sum())
    return Parts([bounded(size) for size in sizes], [not_nan(each) for each in apart], counts)


def _powers(part: torch.Tensor) -> torch.Tensor:
    """The power of two of each number, from 1 on, as its bits have it; 0 for zeros and what is not finite."""
    powers = part.abs().view(torch.int64) >> _FRACTION
    return powers.masked_fill_(powers == _POWERS - 1, 0)


def _starts(used: Sequence[int]) -> list[int]:
    """The lowest power of two of each part, of those in use, the smallest first; zeros are a part."""
    starts, top = list[int](), used[-1]
    for below, power in reversed(list(pairwise(used))):
        if below == 0 or power - below > _GAP or top - below > _SPAN:
            starts.insert(0, power)
            top = below
    return [used[0], *starts]


# --- small tensors of one size at once, to the same bits ---


def _of_alike(some: Alike) -> Iterator[tuple[str, Parts]]:
    """Every tensor, by parts."""
    expected, found = some.sides
    sizes = list(map(bounded, finite_norms(expected)))
    differs = (found != expected).any(1)
    others = iter(_of_differing(found[differs], expected[differs]) if bool(differs.any()) else ())
    for name, size, is_other in zip(some.names, sizes, differs.tolist(), strict=True):
        yield name, next(others) if is_other else Parts((size,), (0.0,))


def _of_differing(found: torch.Tensor, expected: torch.Tensor) -> list[Parts]:
    """``_by_magnitude`` of each row."""
    powers = _powers(expected)
    used = powers.sort(1).values
    lowest, highest = used[:, 0], used[:, -1]
    has_gaps = (used.diff(dim=1) > _GAP).any(1) | ((lowest == 0) & (highest > 0))
    several = has_gaps | (highest - lowest > _SPAN)
    sizes, apart = finite_norms(expected), norms(difference(found, expected))
    of_rows = [Parts((bounded(size),), (not_nan(each),)) for size, each in zip(sizes, apart, strict=True)]
    if bool(several.any()):
        starts = [_starts(sorted(set(row))) for row in used[several].tolist()]
        of_several = _of_several(found[several], expected[several], powers[several], starts)
        for row, each in zip(several.nonzero().flatten().tolist(), of_several, strict=True):
            of_rows[row] = each
    return of_rows


def _of_several(
    found: torch.Tensor, expected: torch.Tensor, powers: torch.Tensor, starts: Sequence[Sequence[int]]
) -> Iterator[Parts]:
    """The same of rows that have several parts, which start with these powers of two."""
    firsts = [row * _POWERS + start for row, of_row in enumerate(starts) for start in of_row]
    places = powers + torch.arange(len(starts)).unsqueeze(1) * _POWERS
    owners = torch.bucketize(places.flatten(), torch.tensor(firsts), right=True) - 1
    order, counts = owners.argsort(stable=True), torch.bincount(owners)
    off = difference(found, expected).flatten()
    sizes = of_pieces(expected.flatten()[order], counts, finite_norms)
    apart = of_pieces(off[order], counts, norms)
    sizes, apart, numbers = list(map(bounded, sizes)), list(map(not_nan, apart)), counts.tolist()
    begin = 0
    for of_row in starts:
        own = slice(begin, begin + len(of_row))
        yield Parts(sizes[own], apart[own], numbers[own])
        begin += len(of_row)
