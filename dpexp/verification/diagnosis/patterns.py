"""Patterns: what a difference from the single device looks like, in words; empty if like nothing known.

A gradient is fitted by those of the shards, ``found = a0*g0 + a1*g1 + …``: the right one has
each shard's share of the rows as its factor, and every usual error of a layout has factors of its own.
"""

import math
from collections.abc import Sequence

import torch

from dpexp.config.errors import consecutive, plural, span

CLOSE = 1e-6
"""Relative residual up to which a pattern fits: errors of layouts are far above, rounding far below."""
EXPLAINED = 1e-3
"""A pattern that leaves more than this share of a difference does not explain it."""


def is_close(found: float, expected: float) -> bool:
    """Whether a fitted factor is this one."""
    return math.isclose(found, expected, rel_tol=1e-4, abs_tol=1e-4)


def factor(found: torch.Tensor, expected: torch.Tensor) -> float | None:
    """The number c of ``found = c * expected``; None if there is none that explains the difference."""
    found, expected = found.flatten(), expected.flatten()
    if found.shape != expected.shape or not bool(found.isfinite().all()):
        return None
    norm = float(torch.vdot(expected, expected).abs())
    if norm == 0:
        return None
    scale = float(torch.vdot(expected, found).real) / norm
    residual = float(torch.linalg.vector_norm(found - scale * expected))
    if residual > CLOSE * math.sqrt(norm) * max(1.0, abs(scale)):
        return None
    if _explains(residual, found, expected):
        return scale
    return 1.0 if is_close(scale, 1) else None


def _explains(residual: float, found: torch.Tensor, expected: torch.Tensor) -> bool:
    return residual <= EXPLAINED * float(torch.linalg.vector_norm(found - expected))


def of_factor(scale: float, shards: int, unit: str = "shard") -> str:
    """A factor in words; ``unit`` is what has a shard of the rows."""
    if is_close(scale, 0):
        return "it is zero"
    if scale == 1:
        return "it is right but for rounding: a module may compute in a shorter type than the model's"
    if shards > 1 and is_close(scale, shards):
        return f"it is {shards} times too large: a sum over {shards} {unit}s instead of the mean"
    if shards > 1 and is_close(scale, 1 / shards):
        return f"it is 1/{shards} of it: divided by the number of {unit}s once too often"
    return f"it is {scale:.6g} times the single device's"


def coefficients(
    found: torch.Tensor, expected: torch.Tensor, shards: Sequence[torch.Tensor], least: int = 1
) -> list[float] | None:
    """The factors of the shards' gradients that add up to the gradient, if these explain that it is wrong.

    None if they do not determine it; ``least`` is how many numbers there must be beyond those of the factors.
    """
    parts = [_as_real(shard) for shard in shards]
    columns, found, expected = torch.stack(parts, dim=1), _as_real(found), _as_real(expected)
    if len(columns) < len(shards) + least or not bool(found.isfinite().all()):
        return None
    scales = torch.linalg.vector_norm(columns, dim=0).clamp_min(1e-300)
    solution = torch.linalg.lstsq(columns / scales, found[:, None], driver="gelsd")
    if int(solution.rank) < len(shards):
        return None
    fitted = solution.solution[:, 0] / scales
    residual = float(torch.linalg.vector_norm(columns @ fitted - found))
    is_fit = residual <= CLOSE * float(torch.linalg.vector_norm(found))
    return fitted.tolist() if is_fit and _explains(residual, found, expected) else None


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).flatten()


def of_coefficients(
    found: Sequence[float],
    rows: Sequence[int],
    unit: str = "shard",
    weights: Sequence[float] = (),
    *,
    are_known: bool = True,
) -> str:
    """The factors of the shards, which have this many rows, in words.

    ``weights`` are the right ones, where they are not the shares of the rows. Of shards that are not known to
    be there only a usual error is evidence.
    """
    count, total = len(rows), sum(rows)
    weights = weights or [n / total for n in rows]
    ratios = [a / right if right else 1 + a for a, right in zip(found, weights, strict=True)]
    named = ", ".join(map(str, rows))
    counted = [shard for shard, ratio in enumerate(ratios) if not is_close(ratio, 0)]
    if all(is_close(ratio, 1) for ratio in ratios):
        return (
            f"it is the sum of the {unit}s' gradients, each with its share of the rows, and that of the "
            "batch is not: the loss is not a mean over rows (but over tokens, say), as --reduction declares, "
            "or a hook on a parameter is not linear"
        )
    if all(is_close(ratio, ratios[0]) for ratio in ratios):
        return of_factor(ratios[0], count, unit)
    if all(is_close(a, 1 / count) for a in found):
        return f"it is the mean of the {unit}s' means, which counts their {named} rows alike"
    if all(is_close(a, 1) for a in found):
        return f"it is the sum of the {unit}s' means, of {named} rows"
    if len(counted) == 1 and count > 2:
        return f"it is that of {unit} {counted[0]} alone: the sum over {unit}s is missing"
    if 0 < len(counted) < count:
        missing = [str(shard) for shard in range(count) if shard not in counted]
        return f"the rows of {unit} {', '.join(missing)} (of {count}) are missing in it"
    if not are_known:
        return ""
    shares = ", ".join(f"{a:.4g}" for a in found)
    return f"it weights {unit}s of {named} rows by {shares}"


def of_rows(found: torch.Tensor, expected: torch.Tensor, ranks: int = 1) -> str:
    """What outputs look like, by their rows (dimension 0); ``ranks`` have computed them."""
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
    a, b = _as_rows(found), _as_rows(expected)
    limit = CLOSE * float(torch.linalg.vector_norm(b)) / math.sqrt(len(b))
    wrong = [row for row in range(len(a)) if not torch.linalg.vector_norm(a[row] - b[row]) <= limit]
    where = ", ".join(_spans(wrong))
    are_distinct = bool((torch.cdist(b, b).fill_diagonal_(math.inf) > limit).all())
    nearest = torch.cdist(a, b).min(dim=1)
    origin = torch.where(nearest.values <= limit, nearest.indices, -1).tolist()
    if are_distinct and sorted(origin) == list(range(len(b))):
        order = ", ".join(_spans(origin))
        return f"its rows are in another order, those of the single device as {order}: shards are swapped"
    if len(wrong) == len(a):
        return ""
    if are_distinct and not a[wrong].any():  # or else it does not show which row it is
        why = "a sum over ranks is missing, or rows are dropped" if ranks > 1 else "rows are dropped"
        return f"rows {where} are zero, the others are right: {why}"
    if are_distinct and all(origin[row] >= 0 for row in wrong):
        repeated = ", ".join(_spans([origin[row] for row in wrong]))
        return f"rows {where} repeat rows {repeated}: rows are dropped"
    return f"rows {where} differ, the others are right"


def _as_rows(tensor: torch.Tensor) -> torch.Tensor:
    return _as_real(tensor).reshape(len(tensor), -1)


def _spans(rows: Sequence[int]) -> list[str]:
    """``[15, 16, 17, 0, 1]`` -> ``15 to 17``, ``0 to 1``; at most four of them."""
    texts = [span(run, " to ") for run in consecutive(rows)]
    return texts[:4] + ["…"] * (len(texts) > 4)
