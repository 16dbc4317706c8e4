"""Factors: how many times as large a gradient is, at the arguments of a loss, as that of the loss itself.

The loss is that of one call, or of the rows of all calls together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dpexp import devices, tensors
from dpexp.config.errors import NotComparableError
from dpexp.copies import copied_module
from dpexp.verification.alone import alone
from dpexp.verification.diagnosis.patterns import multiple
from dpexp.watch.calls import Call, detached_copy
from dpexp.watch.counts import ROWS, count, scalar_of
from dpexp.watch.ranks import LoopRanks

APART = 1e-4
"""A gradient so far from every multiple of another has another direction."""


def factors_of(
    losses: Sequence[Call],
    expected: Iterable[Mapping[int, torch.Tensor]],
    shares: Sequence[float] | None = None,
) -> tuple[list[float], float]:
    """The factor of each, and how far a gradient of the loop is from any multiple of the expected one."""
    factors, apart = list[float](), 0.0
    for call, of_call, share in zip(losses, expected, shares or [1.0] * len(losses), strict=True):
        fitted = multiple(call.gradients, of_call) if share else None
        factors.append(math.nan if fitted is None else fitted.factors[0] / share)
        if fitted is not None and fitted.apart > APART:
            eps = max(
                torch.finfo(each.dtype).eps for place, each in of_call.items() if place in call.gradients
            )
            apart = max(apart, fitted.apart if fitted.apart > 100 * eps else 0.0)
    return factors, apart


def of_each(losses: Sequence[Call]) -> Iterator[Mapping[int, torch.Tensor]]:
    """The gradient at the arguments of each call, of its own loss; one after the other is in memory."""
    return (_gradient([call])[0][0] for call in losses)


def joined(
    losses: Sequence[Call], ranks: LoopRanks, chosen: Sequence[int], of: int
) -> tuple[list[dict[int, torch.Tensor]], float]:
    """At the arguments of each call of this rank, of the loss of all rows as one batch; and this.

    Every rank must call this. ``chosen`` are the ranks that count, ``of`` the one that counts for this.
    """
    needed = [
        Call("", devices.move(each.inputs, devices.HOST), each.order, each.autocast, wanted=each.wanted)
        for each in losses
    ]
    by_rank = ranks.all_gather(needed)
    function = losses[0].function if losses else None
    together = [replace(call, function=function) for rank in chosen for call in by_rank[rank]]
    first = sum(len(by_rank[rank]) for rank in chosen if rank < of)
    found, value = ranks.together(lambda: _gradient(together) if losses else ([], math.nan))
    return found[first : first + len(losses)], value


def _gradient(calls: Sequence[Call]) -> tuple[list[dict[int, torch.Tensor]], float]:
    """At the arguments of each of the calls, of the loss of their rows; and this."""
    trees = [detached_copy(call.inputs) for call in calls]
    leaves = [[*tensors.walk(tree)] for tree in trees]
    for call, of_call in zip(calls, leaves, strict=True):
        for each, wanted in zip(of_call, call.wanted, strict=True):
            each.requires_grad_(wanted)
    try:
        args, kwargs = trees[0] if len(trees) == 1 else tensors.concatenated(trees, of_batches=True)
    except ValueError as error:
        raise NotComparableError(
            f"{error} among the loss's arguments of the calls: state weight=, a function of these"
        ) from error
    rows = [count(ROWS, tree) for tree in trees]
    first = [  # what is no batch, as the weights of classes, is that of one call
        one[0] if one[0].dim() and not one[0].requires_grad and _is_constant(one, rows) else both
        for one, both in zip(zip(*leaves, strict=True), tensors.walk((args, kwargs)), strict=True)
    ]
    args, kwargs = _with_leaves((args, kwargs), first)
    loss = calls[0].function
    function: Any = copied_module(loss) if isinstance(loss, nn.Module) else loss
    ends = [each for of_call in leaves for each in of_call if each.requires_grad]
    with alone(), calls[0].autocast.entered():  # a module may keep something from call to call
        value = scalar_of(function(*args, **kwargs))
    with alone():
        gradients = torch.autograd.grad(value, ends, allow_unused=True) if ends else ()
    found = {id(each): gradient for each, gradient in zip(ends, gradients, strict=True)}
    by_call = [
        {place: found[id(each)] for place, each in enumerate(of_call) if found.get(id(each)) is not None}
        for of_call in leaves
    ]
    return by_call, float(value.detach())


def _is_constant(of_calls: Sequence[torch.Tensor], rows: Sequence[float]) -> bool:
    """Whether a tensor is the same in all calls, which have other numbers of rows."""
    is_batch = all(len(each) == number for each, number in zip(of_calls, rows, strict=True))
    return not is_batch and all(torch.equal(each, of_calls[0]) for each in of_calls)


def _with_leaves(tree: Any, leaves: Sequence[torch.Tensor]) -> Any:
    following = iter(leaves)
    return tensors.map_tensors(lambda _: next(following), tree)
