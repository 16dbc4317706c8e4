"""Small tensors: those of one size and type are rows of a matrix; an operation costs more than arithmetic.

    bias (4) | weight (4, 4) | bias (4) | weight (2, 8)    ->    two rows of 4 numbers, two rows of 16

The norms have the same bits as those of the tensors one by one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch._utils import _flatten_dense_tensors

from dpexp.verification.limits.norms import (
    Tensors,
    bounded,
    difference,
    distance,
    finite_norm,
    magnitude,
    norm,
    not_nan,
)

SMALL = 1 << 12
"""The most numbers of a small tensor: PyTorch adds up those of larger ones in parallel, in another order."""

_MOST = 1 << 22
"""The most numbers of a matrix."""


@dataclass(frozen=True)
class Alike:
    """Tensors of one size and type: a row each, in the matrix of each of several ``sides``; in float64."""

    names: Sequence[str]
    sides: Sequence[torch.Tensor]


def alike(*sides: Tensors) -> Iterator[Alike]:
    """Those that are small, and on the host, and of the same shape and type in all sides."""
    first, others = sides[0], sides[1:]
    by_size: dict[tuple[int, torch.dtype], list[str]] = {}
    for name, tensor in first.items():
        if _is_small(tensor) and all(_is_like(other.get(name), tensor) for other in others):
            by_size.setdefault((tensor.numel(), tensor.dtype), []).append(name)
    for (size, _), names in by_size.items():
        rows = _MOST // size
        for begin in range(0, len(names), rows):
            some = names[begin : begin + rows]
            yield Alike(some, [_matrix([side[name] for name in some], size) for side in sides])


def _matrix(tensors: list[torch.Tensor], size: int) -> torch.Tensor:
    flat: torch.Tensor = _flatten_dense_tensors(tensors)  # type: ignore[no-untyped-call]
    return flat.detach().to(torch.float64).view(-1, size)


_STRIDED, _TYPES = torch.strided, (torch.Tensor, nn.Parameter)
"""Read once: there are thousands of tensors, and most of the time goes into such checks."""


def _is_dense(tensor: torch.Tensor | None) -> bool:
    return type(tensor) in _TYPES and tensor.layout is _STRIDED and tensor.is_cpu  # type: ignore[union-attr]


def _is_small(tensor: torch.Tensor) -> bool:
    return _is_dense(tensor) and 0 < tensor.numel() <= SMALL and tensor.is_floating_point()


def _is_like(other: torch.Tensor | None, tensor: torch.Tensor) -> bool:
    return other is tensor or (
        other is not None and _is_dense(other) and other.dtype is tensor.dtype and other.shape == tensor.shape
    )


def norms(rows: torch.Tensor) -> list[float]:
    """The norm of each row."""
    return _completed(rows, norm)


def finite_norms(rows: torch.Tensor) -> list[float]:
    """The norm of each row, over its finite numbers."""
    return _completed(rows, finite_norm)


def _completed(rows: torch.Tensor, of_row: Callable[[torch.Tensor], float]) -> list[float]:
    """The norms that PyTorch has of the rows, where these are usual ones; else those of each row."""
    found = torch.linalg.vector_norm(rows, dim=1)
    is_zero = (found == 0) & (rows == 0).all(1)
    values: list[float] = found.tolist()
    for row in (~(is_zero | (found.isfinite() & (found != 0)))).nonzero().flatten().tolist():
        values[row] = of_row(rows[row])
    return values


def of_pieces(
    flat: torch.Tensor, sizes: torch.Tensor, norms_of: Callable[[torch.Tensor], list[float]]
) -> list[float]:
    """The norms of pieces of so many numbers each, one after the other."""
    values, begins = [0.0] * len(sizes), sizes.cumsum(0) - sizes
    for size in sorted(set(sizes.tolist())):
        which = (sizes == size).nonzero().flatten()
        rows = flat[begins[which].unsqueeze(1) + torch.arange(size)]
        for place, value in zip(which.tolist(), norms_of(rows), strict=True):
            values[place] = value
    return values


def magnitudes(tensors: Tensors) -> dict[str, float]:
    """``magnitude`` of each tensor."""
    found = dict.fromkeys(tensors, -1.0)
    for some in alike(tensors):
        found.update(zip(some.names, map(bounded, finite_norms(some.sides[0])), strict=True))
    return {name: magnitude(tensors[name]) if size < 0 else size for name, size in found.items()}


def distances(found: Tensors, expected: Tensors) -> dict[str, float]:
    """``distance`` of each tensor of ``expected`` that was found."""
    apart = dict.fromkeys((name for name in expected if name in found), -1.0)
    for some in alike({name: expected[name] for name in apart}, found):
        of_rows = norms(difference(some.sides[1], some.sides[0]))
        apart.update(zip(some.names, map(not_nan, of_rows), strict=True))
    return {name: distance(found[name], expected[name]) if size < 0 else size for name, size in apart.items()}
