"""Averages: what a loss averages over, and so how much parts of a batch count in the loss of all rows.

rule                      the loss of all rows            a part counts
rows                      the mean over the rows          its rows
labels                    the mean over what counts       its labels that are not PADDING
labels after the first    the same of shifted labels      those after the first of each row
sum                       the sum over the rows           once

    loss(a, b) = share(a) loss(a) + share(b) loss(b),     share(a) = count(a) / (count(a) + count(b))
    sum:                                                  share(a) = 1
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from dpexp import tensors
from dpexp.config.features import PADDING

Rule = tuple[str, str]
"""The rule, and the path of the labels in the loss's arguments."""
ROWS: Rule = ("rows", "")
SUM: Rule = ("sum", "")


def count(rule: Rule, inputs: Any) -> float:
    """How much a loss counts inputs, nested tensors ``(rows, …)``, by the rule."""
    kind, path = rule
    if kind == "sum":
        return 1.0
    if kind == "rows":
        return float(next((len(each) for each in tensors.walk(inputs) if each.dim()), 1))
    labels = dict(tensors.leaves(inputs))[path]
    return float(counted(labels if kind == "labels" else labels[:, 1:]))


def counted(labels: torch.Tensor) -> Any:
    """How many labels ``(rows, …)`` a mean over them counts; all of floating-point ones."""
    return labels.numel() if labels.is_floating_point() else (labels != PADDING).sum()


def shares(counts: Sequence[float], is_sum: bool = False) -> list[float]:
    """The weights of all parts of a batch in its loss; not numbers where none counts, as the mean is."""
    total = sum(counts) or math.nan
    return [1.0] * len(counts) if is_sum else [each / total for each in counts]
