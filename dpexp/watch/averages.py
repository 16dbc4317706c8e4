"""Averages: what a loss averages over: how the loss of some rows follows from those of two halves.

It is the mean over rows, over labels that are not ignored, over labels after the first of each row (those of
a language model are shifted), or a sum. One half also gets more labels to ignore, by which they differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dpexp import tensors

IGNORED = -100
"""The label that PyTorch's losses ignore."""
EXACT = 1e-4
"""A loss follows by a rule if it is so near, beside the losses of the halves."""
Rule = tuple[str, str]
"""(rows, sum, labels or labels after the first, the path of the labels in the loss's arguments)"""
ROWS: Rule = ("rows", "")


def count(rule: Rule, inputs: Any) -> float:
    """What the loss of these inputs counts, by the rule."""
    kind, path = rule
    if kind == "sum":
        return 1.0
    if kind == "rows":
        return float(next((len(each) for each in tensors.walk(inputs) if each.dim()), 1))
    labels = dict(tensors.leaves(inputs))[path]
    return float(((labels if kind == "labels" else labels[:, 1:]) != IGNORED).sum())


def rules(loss: Callable[[Any], float], inputs: Any) -> dict[Rule, float] | None:
    """The rules by which the loss follows from those of two halves, with their errors; None for one row."""
    rows = int(count(ROWS, inputs))
    if rows < 2:
        return None
    labels = {
        path: each
        for path, each in tensors.leaves(inputs)
        if isinstance(each, torch.Tensor) and each.dim() and len(each) == rows and each.dtype == torch.long
    }
    known: dict[Rule, float] = dict.fromkeys([ROWS, ("sum", ""), *(("labels", path) for path in labels)], 0.0)
    known |= {("labels after the first", path): 0.0 for path, each in labels.items() if each.dim() > 1}
    for path in ("", *labels):
        whole = _with_ignored(inputs, path, rows // 2) if path else inputs
        halves = [_cut(whole, rows, part) for part in (slice(0, rows // 2), slice(rows // 2, None))]
        try:
            of_whole, first, second = map(loss, (whole, *halves))
        except Exception:  # ids that may not be ignored; the loss of the loop's own rows has been computed
            if not path:
                return {}
            continue
        if math.isfinite(of_whole + first + second):
            errors = {
                each: max(known[each], _error(each, of_whole, (first, second), halves)) for each in known
            }
            found = {each: error for each, error in errors.items() if error <= EXACT}
            known = found if found or not path else known  # labels that it does not ignore
    return known


def _cut(inputs: Any, rows: int, part: slice) -> Any:
    def cut(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[part] if tensor.dim() and len(tensor) == rows else tensor

    return tensors.map_tensors(cut, inputs)


def _error(rule: Rule, of_whole: float, of_halves: tuple[float, float], halves: Sequence[Any]) -> float:
    """How far the loss is from what the rule makes of the halves, relative to theirs."""
    first, second = of_halves
    counts = [count(rule, half) for half in halves]
    mean = (counts[0] * first + counts[1] * second) / max(sum(counts), 1e-300)
    found = first + second if rule[0] == "sum" else mean
    return abs(found - of_whole) / max(abs(first) + abs(second), 1e-300)


def _with_ignored(inputs: Any, path: str, rows: int) -> Any:
    """The inputs where most labels of the first rows are to be ignored, and the first of each row is not."""
    changed = tensors.map_tensors(torch.clone, inputs)
    labels = dict(tensors.leaves(changed))[path]
    if labels.dim() > 1:
        labels[:rows, ..., 1:-1] = IGNORED
    else:
        labels[:rows:2] = IGNORED
    return changed
