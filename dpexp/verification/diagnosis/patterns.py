"""Patterns: what a difference from the single device looks like, in words; empty if like nothing known.

    found = factor * column + factor * column + … + what is left

The columns are what shards of the rows, or calls of the model, contribute. The right gradient is the sum of
those of the shards, each with its share of the rows; every usual error of a layout is another sum of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dpexp import tensors
from dpexp.config.words import plural, ranges

Named = Mapping[Any, torch.Tensor]
"""Tensors of any shape by name, or by any other key."""
CLOSE = 1e-6
"""Relative residual up to which a pattern fits: errors of layouts are far above, rounding far below."""
FEW = 3
"""So few numbers may be those of a short type by chance."""
EXPLAINED = 1e-3
"""A pattern that leaves more than this share of a difference does not explain it."""


@dataclass(frozen=True)
class Found:
    """Where a difference begins, in words, and in which module, if it is known; empty is the model itself.

    ``is_sure`` unless the module around it is right.
    """

    text: str = ""
    module: str | None = None
    is_sure: bool = True


# --- fits ---


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


@dataclass(frozen=True)
class Moments:
    """The sums of squares of what was ``found`` and ``of`` another, and of the products of both.

    Those of tensors, or of shards, that have no number in common can be added.
    """

    found: float = 0.0
    of: float = 0.0
    dot: float = 0.0

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.found + other.found, self.of + other.of, self.dot + other.dot)

    def scaled(self, times: float) -> Moments:
        """Those of so many times ``of``."""
        return Moments(self.found, self.of * times * times, self.dot * times)

    @property
    def factor(self) -> float:
        """How many times ``of`` was found, the nearest number; NaN of nothing but zeros."""
        return self.dot / self.of if self.of else math.nan

    @property
    def left(self) -> float:
        """The norm of what this leaves, known to 1e-8 of what was found."""
        return math.sqrt(max(0.0, self.found - self.dot / self.of * self.dot)) if self.of else self.found**0.5


def moments(found: torch.Tensor | None, of: torch.Tensor | None) -> Moments:
    """Those of two dense tensors of one shape, on their device, a chunk at a time; without one it is zero."""
    if found is None or of is None:
        both = [each if each is None else moments(each, each).of for each in (found, of)]
        return Moments(both[0] or 0.0, both[1] or 0.0)
    sums = []
    for pair in tensors.chunks(of, found):
        column = tensors.wide(pair[0])
        target = tensors.wide(pair[1]).to(column.device)
        pairs = (target, target), (column, column), (column, target)
        sums.append(torch.stack([(a.conj() * b).real.sum() for a, b in pairs]))
    return Moments(*torch.stack(sums).sum(0).tolist())


def multiple(found: Named, of: Named) -> Fit | None:
    """How many times ``of`` the tensors are that both have, the nearest number; None of nothing but zeros."""
    names = [name for name in of if name in found]
    measured = sum((moments(found[name], of[name]) for name in names), Moments())
    if not measured.of:
        return None
    pairs = [pair for name in names for pair in tensors.chunks(of[name], found[name])]
    left = (tensors.wide(b).to(a.device) - measured.factor * tensors.wide(a) for a, b in pairs)
    return Fit([measured.factor], _norm(left), math.sqrt(measured.found))


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


# --- words ---


def is_close(found: float, expected: float) -> bool:
    """Whether a fitted factor is this one."""
    return math.isclose(found, expected, rel_tol=1e-4, abs_tol=1e-4)


def factor(found: torch.Tensor, expected: torch.Tensor) -> float | None:
    """The number c of ``found = c * expected``, of one shape; None if none explains the difference."""
    found, expected = found.flatten(), expected.flatten()
    if found.shape != expected.shape or not bool(found.isfinite().all()):
        return None
    fitted = multiple({"": found}, {"": expected})
    if fitted is None:
        return None
    (scale,), size = fitted.factors, float(torch.linalg.vector_norm(expected))
    if fitted.left > CLOSE * size * max(1.0, abs(scale)):
        return None
    if fitted.left <= EXPLAINED * float(torch.linalg.vector_norm(found - expected)):
        return scale
    return 1.0 if is_close(scale, 1) else None


def of_type(found: torch.Tensor) -> str:
    """That the numbers, of any shape, are all of a shorter type: something has cast them to it."""
    for kind in (torch.bfloat16, torch.float16, torch.float32):
        if found.numel() > FEW and torch.equal(found.to(kind).to(found.dtype), found):
            name = str(kind).removeprefix("torch.")
            return f"its numbers are rounded to {name}: something casts it, or adds it up, in this type"
    return ""


def of_factor(scale: float, shards: int, unit: str = "shard") -> str:
    """A factor in words; ``unit`` is what has a shard of the rows."""
    if is_close(scale, 0):
        return "it is zero"
    if scale == 1:
        return "it is right but for rounding: a module may compute in a shorter type than the model's"
    times = f"{shards} times too large" if scale > 1 else f"1/{shards} of it"
    for cause, value in scalings(shards, unit).items():
        if is_close(scale, value):
            return f"it is {times}: {cause}"
    return f"it is {scale:.6g} times the single device's"


def scalings(shards: int, unit: str, micro: int = 1) -> dict[str, float]:
    """The usual errors that scale all of a gradient, and by what: over shards, and over ``micro`` batches."""
    causes = {
        f"the loss of each of {micro} micro-batches is not divided by {micro}": float(micro),
        f"a sum over {shards} {unit}s instead of the mean": shards,
        f"a sum over {shards} {unit}s and {micro} micro-batches instead of the mean": shards * micro,
        f"divided by the number of {unit}s once too often": 1 / shards,
        f"{micro} micro-batches are divided by {micro * micro} (twice, or too few of them)": 1 / micro,
    }
    return {cause: value for cause, value in causes.items() if value != 1}


def of_shards(
    found: torch.Tensor,
    shards: Sequence[torch.Tensor],
    rows: Sequence[int],
    weights: Sequence[float],
    unit: str,
) -> tuple[str, int | None]:
    """A gradient beside those of the shards in words, and the shard that it belongs to alone.

    All are vectors of one shape.
    ``weights`` are the right ones, the shares of the ``rows`` where the loss is a mean over these.
    """
    if found.numel() <= len(shards) or not bool(found.isfinite().all()):
        return "", None
    alone = next((shard for shard, each in enumerate(shards) if factor(found, each) is not None), None)
    if alone is not None:
        return f"it is that of {unit} {alone} alone: the sum over {unit}s is missing", alone
    scale = factor(found, _sum(shards, weights))
    if scale is not None and is_close(scale, 1):
        return (
            f"it is the sum of the {unit}s' gradients, each with its share of the rows, and that of the "
            "batch is not: the loss is not a mean over rows (but over tokens, say), as --reduction declares, "
            "or a hook on a parameter is not linear"
        ), None
    if scale is not None:
        return of_factor(scale, len(shards), unit), None
    scale = factor(found, _sum(shards, [1 / len(shards)] * len(shards)))
    if scale is not None and is_close(scale, 1):
        named = ", ".join(map(str, rows))
        return f"it is the mean of the {unit}s' means, which counts their {named} rows alike", None
    if scale is not None and is_close(scale, len(shards)):
        return f"it is the sum of the {unit}s' means, of {', '.join(map(str, rows))} rows", None
    return "", None


def _sum(shards: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    return torch.stack([shard * weight for shard, weight in zip(shards, weights, strict=True)]).sum(0)


def of_rows(found: torch.Tensor, expected: torch.Tensor, ranks: int = 1) -> str:
    """What outputs ``(rows, …)`` look like, by their rows; ``ranks`` have computed them."""
    if found.shape != expected.shape:
        sizes, wanted = tuple(found.shape), tuple(expected.shape)
        if sizes and wanted and sizes[1:] == wanted[1:] and sizes[0] < wanted[0]:
            return f"it has {plural(sizes[0], 'row')} instead of {wanted[0]}: rows are dropped"
        return f"its shape is {sizes} instead of {wanted}"
    scale = factor(found, expected)
    if scale is not None:
        return of_factor(scale, 1)
    if found.dim() == 0 or len(found) < 2:
        return ""
    a, b = (each.reshape(len(each), -1) for each in (found, expected))
    limit = CLOSE * float(torch.linalg.vector_norm(b)) / math.sqrt(len(b))
    wrong = [row for row in range(len(a)) if not torch.linalg.vector_norm(a[row] - b[row]) <= limit]
    if len(wrong) == len(a):
        return ""
    spans = ranges(wrong, " to ")
    where = ", ".join(spans[:4] + ["…"] * (len(spans) > 4))
    if not a[wrong].any():
        why = "a sum over ranks is missing, or rows are dropped" if ranks > 1 else "rows are dropped"
        return f"rows {where} are zero, the others are right: {why}"
    return f"rows {where} differ, the others are right"
