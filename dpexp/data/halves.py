"""Halves: whether the loss of a batch is that of its halves together, and by which rule (``averages``).

A run has a rule, and whoever splits batches relies on it. Of a watched loop the rule is what fits its losses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpexp import tensors
from dpexp.config.features import PADDING
from dpexp.config.words import plural
from dpexp.copies import copied_module
from dpexp.data.averages import ROWS, SUM, Rule, count, shares
from dpexp.data.batch import Batch
from dpexp.data.objective import Objective

LIMIT = 1e-6
"""A larger relative difference is not rounding in float64; for a loss in a shorter type 1000 of its steps."""
EXACT = 1e-4
"""A loss in float32 follows by a rule if it is so near, beside the losses of the halves."""

KINDS = {"rows": "a mean over rows", "tokens": "a mean over what it is weighted by", "sum": "a sum over rows"}

# --- the rule that a run has ---


def no_mean_over_rows(model: nn.Module, objective: Objective, batch: Batch) -> str:
    """That the loss of the batch is not that of its halves together, and what to give; empty where it is.

    A copy of the model computes all rows and each half in eval mode, in float64 and without gradients. Empty
    also where halves say nothing: the batch has no halves, or the loss draws random numbers or is not finite.
    """
    if batch.rows < 2 or batch.has_structure:
        return ""
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            whole, together, limit = _losses(model, objective, batch)
    except Exception:  # of any kind: it is the user's loss, which need not take half of a batch
        return ""
    if not abs(whole - together) > limit:  # or not a number
        return ""
    return (
        f"the loss of a batch of {plural(batch.rows, 'row')} is {whole:.6g}, and that of its halves together "
        f"{together:.6g}: it is not {KINDS[objective.reduction]}. For a sum give --reduction sum, for a mean "
        "over targets --reduction tokens (only -100 counts as masked), for another mean a function "
        "loss_weight(targets) of the loss or the model, which returns what it divides by"
    )


def _losses(model: nn.Module, objective: Objective, batch: Batch) -> tuple[float, float, float]:
    """The loss of all rows, that of the halves together, and the largest difference by rounding."""
    module = tensors.cast_module(copied_module(model), torch.float64).eval()
    if any(isinstance(each, _BatchNorm) and each.running_mean is None for each in module.modules()):
        raise RuntimeError("batch norms without running statistics mix the rows")
    batch = batch.changed(partial(tensors.cast, dtype=torch.float64))
    before, middle = torch.get_rng_state(), batch.rows // 2
    parts = [batch, batch.sliced(slice(0, middle)), batch.sliced(slice(middle, batch.rows))]
    whole, *of_halves = [
        objective.of(module).on_one_device(module(*part.inputs), part.targets) for part in parts
    ]
    if not torch.equal(before, torch.get_rng_state()):
        raise RuntimeError("it draws random numbers")
    weights = objective.weights(parts[1:])
    losses = [weight * float(loss) for weight, loss in zip(weights, of_halves, strict=True)]
    relative = max(LIMIT, 1000 * torch.finfo(whole.dtype).eps)
    return float(whole), math.fsum(losses), relative * max(abs(float(whole)), *map(abs, losses))


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
    for path in ("", *labels):
        whole = _with_ignored(inputs, path, rows // 2) if path else inputs
        halves = [_cut(whole, rows, part) for part in (slice(0, rows // 2), slice(rows // 2, None))]
        try:
            losses = [loss(each) for each in (whole, *halves)]
        except Exception:  # ids that may not be ignored; the loss of the loop's own rows has been computed
            if not path:
                return {}
            continue
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
