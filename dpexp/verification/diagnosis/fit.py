"""Fit: what was found as a sum of what shards of the rows, or calls of the model, contribute to it.

    found = factor * column + factor * column + … + what is left

The columns of a right layout or loop have known factors. Others say what is wrong, in words of ``patterns``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Named = Mapping[Any, torch.Tensor]
"""Tensors of any shape by name, or by any other key."""


@dataclass(frozen=True)
class Fit:
    """The ``factors`` of the columns, the norm of what is ``left``, and the ``size`` of what was found."""

    factors: Sequence[float]
    left: float
    size: float

    @property
    def apart(self) -> float:
        """What is left, relative to what was found; 0 where nothing was."""
        return self.left / self.size if self.size else 0.0


def multiple(found: Named, of: Named) -> Fit | None:
    """How many times ``of`` the tensors are that both have, the nearest number; None of nothing but zeros.

    One tensor after the other is in memory in float64.
    """
    names = [name for name in of if name in found]
    dot = size = 0.0
    for name in names:
        column = _wide(of[name])
        dot += float(torch.vdot(column, _wide(found[name])).real)
        size += float(torch.linalg.vector_norm(column)) ** 2
    if not size:
        return None
    factor = dot / size
    left = (_wide(found[name]) - factor * _wide(of[name]) for name in names)
    return Fit([factor], _norm(left), _norm(_wide(found[name]) for name in names))


def fit(found: Named, columns: Sequence[Named]) -> Fit:
    """The sum of the columns that is nearest, by least squares. Tensors that a column lacks are zeros."""
    like = {name: each for side in (found, *columns) for name, each in side.items()}
    if not like:
        return Fit([0.0] * len(columns), 0.0, 0.0)

    def vector(side: Named) -> torch.Tensor:
        return torch.cat([_wide(side.get(name, torch.zeros_like(each))) for name, each in like.items()])

    target, matrix = vector(found), torch.stack([*map(vector, columns)], 1)
    sizes = matrix.norm(dim=0).clamp_min(1e-300)
    matrix = matrix / sizes
    solved = torch.linalg.lstsq(matrix, target.unsqueeze(1), rcond=1e-7, driver="gelsd").solution.squeeze(1)
    factors = (solved / sizes).tolist()
    return Fit(factors, float((matrix @ solved - target).norm()), float(target.norm()))


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers as a vector on the host, in float64 or complex128."""
    return tensor.detach().cpu().flatten().to(torch.complex128 if tensor.is_complex() else torch.float64)


def _norm(parts: Iterable[torch.Tensor]) -> float:
    return math.hypot(*(float(torch.linalg.vector_norm(each)) for each in parts))
