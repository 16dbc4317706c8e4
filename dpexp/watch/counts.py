"""Counts: what the loss of a call counts in the loss of all rows of all ranks.

loss                            rule                    share of a call
the mean over rows              rows                    its rows / all rows
the mean over what counts       labels                  its labels that are not PADDING / all of these
the same of shifted labels      labels after the first  those after the first of each row / all of these
a sum                           sum                     1, at a scale that the loop chooses
a sum divided by an argument n  that whose total is n   n / all labels

    loss(a, b) = share(a) loss(a) + share(b) loss(b)

What a loss averages over is measured (``averages``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dpexp import tensors
from dpexp.config.errors import NotComparableError
from dpexp.data.objective import counted
from dpexp.watch.ranks import LoopRanks

Rule = tuple[str, str]
"""The rule, and the path of the labels in the loss's arguments."""
ROWS: Rule = ("rows", "")
SUM: Rule = ("sum", "")
NEAR = 1e-3
"""So near a count is to a number that may be written in a short type."""


@dataclass(frozen=True)
class Average:
    """What a loss averages over, by a rule; ``divisor`` is the path of the argument that divides it, too."""

    rule: Rule
    divisor: str = ""


@dataclass(frozen=True)
class Counted:
    """``shares`` of this rank's losses in the loss of all rows, None where only the loss itself says it.

    ``is_free``: their scale is the loop's own. ``is_joined``: the rows of all calls together say them.
    """

    shares: Sequence[float] | None
    rule: str
    is_free: bool = False
    is_joined: bool = False


def scalar_of(value: Any) -> torch.Tensor:
    """The loss that a function returns, alone or first of several. Raises NotComparableError without one."""
    scalars = [each for each in tensors.walk(value) if not each.dim() and each.is_floating_point()]
    if not scalars or (isinstance(value, torch.Tensor) and value.dim()):
        raise NotComparableError(
            "the loss returns no scalar tensor: watch a function of what a single device minimizes"
        )
    return next((each for each in scalars if each.requires_grad), scalars[0])


def shares_of(inputs: Sequence[Any], average: Average, ranks: LoopRanks, chosen: Sequence[int]) -> Counted:
    """Of losses with these inputs; every rank must call this. ``chosen`` are the ranks that count."""
    rule, path = average.rule, average.divisor
    divisors = [float(dict(tensors.leaves(each))[path]) if path else 1.0 for each in inputs]
    if rule == SUM and path:
        return _divided(inputs, divisors, ranks, chosen)
    if rule == SUM:
        return Counted([1.0] * len(inputs), "sum", is_free=True)
    counts = [count(rule, each) for each in inputs]
    total = totals(counts, ranks, chosen)[0]
    shares = [each / total * n if total else 0.0 for each, n in zip(counts, divisors, strict=True)]
    return Counted(shares, " ".join(rule).strip())


def count(rule: Rule, inputs: Any) -> float:
    """How much a loss counts inputs, nested tensors ``(rows, …)``, by the rule."""
    kind, path = rule
    if kind == "sum":
        return 1.0
    if kind == "rows":
        return float(next((len(each) for each in tensors.walk(inputs) if each.dim()), 1))
    labels = dict(tensors.leaves(inputs))[path]
    return float(counted(labels if kind == "labels" else labels[:, 1:]))


def counted_alike(inputs: Sequence[Any]) -> dict[str, list[float]]:
    """How many rows each call has, and how many labels: by the first tensor of labels, or a mask."""
    found = {"rows": [count(ROWS, each) for each in inputs], "labels": [0.0] * len(inputs)}
    for place, each in enumerate(inputs):
        first = next((rule for rule in kinds(each) if rule[0] == "labels"), None)
        found["labels"][place] = count(first, each) if first else _of_mask(each)
    return found


def _of_mask(inputs: Any) -> float:
    """How many ones there are in the first mask; 0 without one."""
    masks = (
        each for each in tensors.walk(inputs) if each.numel() > 1 and bool(((each == 0) | (each == 1)).all())
    )
    return next((float(each.sum()) for each in masks), 0.0)


def _divided(
    inputs: Sequence[Any], divisors: Sequence[float], ranks: LoopRanks, chosen: Sequence[int]
) -> Counted:
    """A sum over what counts, divided by a number that is the count of a call, a rank, or all ranks."""
    found = [set(kinds(each)) for each in inputs]
    by_rank = ranks.all_gather(sorted(set[Rule].intersection(*found)) if found else None)
    common = set[Rule].intersection(*(set(each) for each in by_rank if each is not None))
    for rule in sorted(common):
        counts = [count(rule, each) for each in inputs]
        total, of_rank = totals(counts, ranks, chosen)
        sums = of_rank, of_rank * len(chosen), total, total / len(chosen)
        of = [counts, *([each] * len(counts) for each in sums)]
        fits = [
            all(math.isclose(a, n, rel_tol=NEAR) for a, n in zip(each, divisors, strict=True)) for each in of
        ]
        if any(all(column) for column in zip(*ranks.all_gather(fits), strict=True)):
            return Counted([each / total for each in divisors], " ".join(rule).strip())
    return Counted(list(divisors), "sum", is_free=True)


def totals(counts: Sequence[float], ranks: LoopRanks, chosen: Sequence[int]) -> tuple[float, float]:
    """Of all ranks that count, and of this one."""
    by_rank = ranks.all_gather(sum(counts))
    return sum(by_rank[rank] for rank in chosen), by_rank[ranks.rank]


def kinds(inputs: Any) -> Iterator[Rule]:
    """What may be counted in the inputs."""
    yield ROWS
    for path, each in tensors.leaves(inputs):
        if isinstance(each, torch.Tensor) and each.dim() and each.dtype == torch.long:
            yield "labels", path
            if each.dim() > 1:
                yield "labels after the first", path
