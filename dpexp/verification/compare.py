"""Compare: relative errors of named tensors, and the tensor that contributes most.

The error of one kind of tensors (outputs, gradients, …) is ``||a - b|| / ||b||`` over all of them together.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

_CHUNK = 1 << 22
"""Numbers that are compared at once: the difference of large tensors is never in memory as a whole."""

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Difference:
    """The relative error over all tensors of a kind, and the tensor with the largest part in it."""

    kind: str
    error: float
    tensor: str = ""
    step: int = 0


def difference(kind: str, found: Tensors, expected: Tensors) -> Difference | None:
    """None if there is nothing to compare. A missing tensor counts as zeros."""
    apart = distances(found, expected)
    if not apart:
        return None
    norm = math.hypot(*map(magnitude, expected.values()))
    total = math.hypot(*apart.values())
    largest = max(apart, key=lambda name: apart[name])
    return Difference(kind, total / norm if norm > 0 else total, largest)


def relative_error(found: Tensors, expected: Tensors) -> float:
    """``||found - expected|| / ||expected||`` over all tensors; infinite where shapes differ."""
    result = difference("", found, expected)
    return result.error if result else 0.0


def distances(found: Tensors, expected: Tensors) -> dict[str, float]:
    """``||found - expected||`` of each tensor, those that only one side has included."""
    names = [*expected, *(name for name in found if name not in expected)]
    return {name: distance(found.get(name), expected.get(name)) for name in names}


def distance(found: torch.Tensor | None, expected: torch.Tensor | None) -> float:
    """``||found - expected||``; infinite for other shapes and for NaN on one side only."""
    if found is None or expected is None:
        present = expected if found is None else found
        return magnitude(present) if present is not None else 0.0
    if found.shape != expected.shape:
        return math.inf
    if found.is_sparse and expected.is_sparse:
        return magnitude(found.cpu() - expected.cpu())
    found, expected = (tensor.to_dense() if tensor.is_sparse else tensor for tensor in (found, expected))
    pairs = zip(_chunks(found), _chunks(expected), strict=True)
    return _not_nan(math.hypot(*(_norm_of_difference(a, b) for a, b in pairs)))


def magnitude(tensor: torch.Tensor) -> float:
    """The norm over the finite entries."""
    return math.hypot(*map(_finite_norm, _chunks(tensor)))


def _finite_norm(part: torch.Tensor) -> float:
    norm = _norm(part)
    return norm if math.isfinite(norm) else _norm(torch.where(part.isfinite(), part, 0))


def _norm_of_difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    if torch.equal(found, expected):
        return 0.0
    norm = _norm(found - expected)
    if math.isfinite(norm):
        return norm
    same = (found == expected) | (found.isnan() & expected.isnan())  # infinities of both sides, too
    return _norm((found - expected).masked_fill(same, 0))


def _norm(tensor: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor))


def _not_nan(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    tensor = tensor.detach()
    flat = tensor.coalesce().values() if tensor.is_sparse else tensor
    for part in torch.split(flat.reshape(-1), _CHUNK):
        wide = torch.complex128 if part.is_complex() else torch.float64
        yield part.to("cpu", wide)
