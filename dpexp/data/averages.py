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
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from dpexp import tensors
from dpexp.config.features import PADDING

Rule = tuple[str, str]
"""The rule, and the path of the labels in the loss's arguments."""
ROWS: Rule = ("rows", "")
SUM: Rule = ("sum", "")
EXACT = 1e-4
"""A loss in float32 follows by a rule if it is so near, beside the losses of the halves."""


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


# --- the rules that fit a loss ---


def rules(loss: Callable[[Any], float], inputs: Any) -> dict[Rule, float] | None:
    """The rules by which the loss follows from those of two halves, with their errors; None for one row.

    ``inputs`` are nested tensors ``(rows, …)``. One half also gets more labels to ignore, by which labels
    differ from rows.
    """
    rows = int(count(ROWS, inputs))
    if rows < 2:
        return None
    labels = {
        path: each
        for path, each in tensors.leaves(inputs)
        if isinstance(each, torch.Tensor) and each.dim() and len(each) == rows and each.dtype == torch.long
    }
    known: dict[Rule, float] = dict.fromkeys([ROWS, SUM, *(("labels", path) for path in labels)], 0.0)
    known |= {("labels after the first", path): 0.0 for path, each in labels.items() if each.dim() > 1}
    given = math.nan
    for path in ("", *labels):
        whole = _with_ignored(inputs, path, rows // 2) if path else inputs
        halves = [_cut(whole, rows, part) for part in (slice(0, rows // 2), slice(rows // 2, None))]
        try:
            losses = [loss(each) for each in (whole, *halves)]
        except Exception:  # ids that may not be ignored; the loss of the loop's own rows has been computed
            if not path:
                return {}
            continue
        if not path:
            given = losses[0]
        elif losses[0] == given:
            continue  # it does not read these labels
        if all(map(math.isfinite, losses)):
            fitting = {each: max(error, known[each]) for each, error in _errors(known, losses, halves)}
            known = fitting if fitting or not path else known  # labels that it does not ignore
    return known


def _errors(rules: Iterable[Rule], losses: Sequence[float], halves: Sequence[Any]) -> Iterator[Any]:
    """The rules that the losses, of all rows and of the halves, obey, with their errors relative to those."""
    of_whole, *of_halves = losses
    size = max(math.fsum(map(abs, of_halves)), 1e-300)
    for rule in rules:
        weights = shares([count(rule, half) for half in halves], rule == SUM)
        together = math.fsum(weight * each for weight, each in zip(weights, of_halves, strict=True))
        error = abs(together - of_whole) / size
        if error <= EXACT:  # a number
            yield rule, error


def _cut(inputs: Any, rows: int, part: slice) -> Any:
    def cut(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[part] if tensor.dim() and len(tensor) == rows else tensor

    return tensors.map_tensors(cut, inputs)


def _with_ignored(inputs: Any, path: str, rows: int) -> Any:
    """The inputs where most labels of the first rows are to be ignored, and the first of each row is not."""
    changed = tensors.map_tensors(torch.clone, inputs)
    labels = dict(tensors.leaves(changed))[path]
    if labels.dim() > 1:
        labels[:rows, ..., 1:-1] = PADDING
    else:
        labels[:rows:2] = PADDING
    return changed
