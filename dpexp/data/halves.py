"""Halves: whether the loss of a batch is that of its halves together, as whoever splits batches assumes.

rows, tokens    loss(a, b)  =  weight(a) loss(a) + weight(b) loss(b)
sum             loss(a, b)  =  loss(a) + loss(b)
"""

import math
from functools import partial

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpexp import tensors
from dpexp.config.words import plural
from dpexp.copies import copied_module
from dpexp.data.batch import Batch
from dpexp.data.objective import Objective

LIMIT = 1e-6
"""A larger relative difference is not rounding in float64; for a loss in a shorter type 1000 of its steps."""

KINDS = {"rows": "a mean over rows", "tokens": "a mean over what it is weighted by", "sum": "a sum over rows"}


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
        objective.copied(module).probed(module(*part.inputs), part.targets)[1] for part in parts
    ]
    if not torch.equal(before, torch.get_rng_state()):
        raise RuntimeError("it draws random numbers")
    weights = objective.weights(parts[1:])
    losses = [weight * float(loss) for weight, loss in zip(weights, of_halves, strict=True)]
    relative = max(LIMIT, 1000 * torch.finfo(whole.dtype).eps)
    return float(whole), math.fsum(losses), relative * max(abs(float(whole)), *map(abs, losses))
