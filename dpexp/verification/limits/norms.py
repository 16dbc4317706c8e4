"""Norms: how large a tensor is, and how far two are apart, in float64 on the host.

What is small is computed with others like it (``small_tensors``), to the same bits.
"""

import math
import sys
from collections.abc import Iterator, Mapping

import torch

_CHUNK = 1 << 22
"""Numbers that are compared at once: the difference of large tensors is never in memory as a whole."""

Tensors = Mapping[str, torch.Tensor]


def distance(found: torch.Tensor | None, expected: torch.Tensor | None) -> float:
    """``||found - expected||``; infinite for other shapes and for NaN on one side only."""
    if found is None or expected is None:
        present = expected if found is None else found
        return magnitude(present) if present is not None else 0.0
    if found.shape != expected.shape:
        return math.inf
    pairs = zip(*map(chunks, dense(found, expected)), strict=True)
    return not_nan(math.hypot(*(norm(difference(a, b)) for a, b in pairs)))


def magnitude(tensor: torch.Tensor) -> float:
    """The norm over the finite entries."""
    return bounded(math.hypot(*map(finite_norm, chunks(tensor))))


def dense(found: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as dense tensors; of two sparse ones the rows that either has."""
    if found.is_sparse and expected.is_sparse and found.sparse_dim() == expected.sparse_dim() == 1:
        both = [each.cpu().coalesce() for each in (found, expected)]
        rows = torch.unique(torch.cat([each.indices()[0] for each in both]))
        found, expected = (each.index_select(0, rows) for each in both)
    found, expected = (each.to_dense() if each.is_sparse else each for each in (found, expected))
    return found, expected


def difference(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Zero where both are the same infinity, or NaN."""
    apart = found - expected
    if bool(apart.isfinite().all()):
        return apart
    return apart.masked_fill_((found == expected) | (found.isnan() & expected.isnan()), 0)


def finite_norm(part: torch.Tensor) -> float:
    """The norm over the finite entries."""
    found = norm(part)
    return found if math.isfinite(found) else norm(torch.where(part.isfinite(), part, 0))


def norm(tensor: torch.Tensor) -> float:
    """The norm, also of numbers whose squares are not in the range of float64."""
    found = float(torch.linalg.vector_norm(tensor))
    if found and math.isfinite(found):
        return found
    largest = float(tensor.abs().max()) if tensor.numel() else 0.0
    usual = 0 < largest < math.inf
    return largest * float(torch.linalg.vector_norm(tensor / largest)) if usual else largest


def bounded(value: float) -> float:
    """A norm that has no number of float64 is the largest one."""
    return min(value, sys.float_info.max)


def not_nan(value: float) -> float:
    """Infinity for NaN."""
    return math.inf if math.isnan(value) else value


def chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The numbers of a tensor in float64 or complex128 on the host, so many at once."""
    tensor = tensor.detach()
    flat = tensor.coalesce().values() if tensor.is_sparse else tensor
    for part in torch.split(flat.reshape(-1), _CHUNK):
        wide = torch.complex128 if part.is_complex() else torch.float64
        yield part.to("cpu", wide)
