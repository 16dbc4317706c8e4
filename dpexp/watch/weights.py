"""Weights: how many times as much the loop counts each call as the loss of all rows of all ranks does.

The gradient that the loop brings to the loss's arguments is compared with that of the loss of all rows: their
ratio is the factor of the call. What a call counts in the loss of all rows is measured (``averages``), or the
user's ``weight`` says it, or the rows of all calls are joined to one batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dpexp import devices, tensors
from dpexp.config.errors import NotComparableError
from dpexp.copies import copied_module
from dpexp.data.averages import SUM, Rule, count, rules
from dpexp.verification.alone import alone
from dpexp.verification.diagnosis.patterns import multiple
from dpexp.watch.calls import LoopCall
from dpexp.watch.ranks import LoopRanks
from dpexp.watch.replay import Replay

APART = 1e-4
"""A gradient so far from every multiple of another has another direction."""


@dataclass(frozen=True)
class Weighed:
    """``factors`` of the calls of all ranks that count, and whether the loop counts them all alike where
    a single device does not.

    ``shares`` are those of this rank's calls in the loss of all rows, if known; ``rule`` says what it
    averages over. ``apart``: how far a gradient of the loop is from any multiple of the expected one.
    """

    factors: Sequence[float]
    are_equal: bool
    shares: Sequence[float] | None
    rule: str
    apart: float


class Weighing:
    """``loss`` is the user's, or None where it is inside the model."""

    def __init__(
        self, loss: Callable[..., Any] | None, weight: Any, ranks: LoopRanks, replay: Replay
    ) -> None:
        self._loss, self._weight, self._ranks, self._replay = loss, weight, ranks, replay

    def weigh(self, calls: Sequence[LoopCall], losses: Sequence[LoopCall], counted: Sequence[int]) -> Weighed:
        """Set the factor of every call; every rank must call this. Raises NotComparableError."""
        own = calls if self._loss is None else losses
        if not any(self._ranks.all_gather(bool(own))):
            raise NotComparableError(
                "the model's outputs were differentiated, and run.loss was not called: call it in the loop, "
                "or watch without a loss"
            )
        shares, rule = self._shares(own, counted)
        if self._loss is None:
            assert shares is not None
            for call, share in zip(own, shares, strict=True):
                gradient = call.gradients[scalar_place(call) or 0]
                call.factor = float(gradient) / share if share else math.nan
            apart = 0.0
        else:
            expected = self._gradients(losses, shares, counted)
            apart = max(map(_set_factor, losses, expected), default=0.0)
        factors_by_rank = self._ranks.all_gather([call.factor for call in own])
        known = [each for of_rank in factors_by_rank for each in of_rank if math.isfinite(each) and each]
        for call in own:  # a loss without a gradient has the factor of the others
            if not (math.isfinite(call.factor) and call.factor):
                call.factor = known[0] if known else 1.0
        if own is not calls and len(own) == len(calls):
            for call, loss in zip(calls, own, strict=True):
                call.factor = loss.factor
        elif own is not calls:
            for call in calls:  # the loss that follows it
                call.factor = next(
                    (each.factor for each in own if each.order > call.order), own[-1].factor if own else 1.0
                )
        weights = [call.factor * share for call, share in zip(own, shares or (), strict=False)]
        by_rank = self._ranks.all_gather(([call.factor for call in own], weights, apart))
        chosen = [by_rank[rank] for rank in sorted(set(counted))]
        factors = [each for of_rank, _, _ in chosen for each in of_rank]
        weights = [each for _, of_rank, _ in chosen for each in of_rank]
        are_equal = are_alike(weights) and not are_alike(factors)
        return Weighed(factors, are_equal, shares, rule, max(of_rank for *_, of_rank in by_rank))

    # --- what each call counts ---

    def _shares(self, own: Sequence[LoopCall], counted: Sequence[int]) -> tuple[list[float] | None, str]:
        """What each call counts in the loss of all rows; None where only the loss itself says it."""
        if callable(self._weight):
            weight, rule = self._weight, "weights"
            counts = self._ranks.together(
                lambda: [float(weight(*call.inputs[0], **call.inputs[1])) for call in own]
            )
        elif self._weight == "sum":
            return [1.0] * len(own), "sum"
        else:
            found = self._measured(own)
            if found is None and self._loss is None:
                raise NotComparableError(
                    "the loss inside the model is not a mean over rows or labels, nor a sum: state weight=, "
                    "a function of the model's inputs"
                )
            if found is None:  # it depends on other rows, or has weights of its own
                return None, ""
            rule = " ".join(found).strip()
            if found == SUM:
                return [1.0] * len(own), rule
            counts = [count(found, call.inputs) for call in own]
        total = sum(sum(self._ranks.all_gather(counts)[rank]) for rank in set(counted))
        return [each / total for each in counts] if total else [0.0] * len(counts), rule

    def _measured(self, own: Sequence[LoopCall]) -> Rule | None:
        """The rule that fits all calls best."""

        def measured() -> list[dict[Rule, float] | None]:
            return [rules(self._value(call), call.inputs) for call in own]

        by_rank = self._ranks.all_gather(self._ranks.together(measured))
        known = [each for of_rank in by_rank for each in of_rank if each is not None]
        fitting = set[Rule].intersection(*map(set, known)) if known else set()
        return min(fitting, key=lambda rule: (max(each[rule] for each in known), rule), default=None)

    def _value(self, call: LoopCall) -> Callable[[Any], float]:
        """The loss as a function of inputs, on the host, where labels that it does not know raise."""
        loss, autocast = self._loss, call.autocast._replace(kind="cpu")
        function = self._replay.on_host().scalar if loss is None else loss
        on_host = copied_module(function).cpu() if isinstance(function, nn.Module) else function

        def value(inputs: Any) -> float:
            args, kwargs = devices.move(inputs, devices.HOST)
            with torch.no_grad(), alone(), autocast.entered():
                return float(on_host(*args, **kwargs))

        return value

    # --- the gradient of the loss of all rows ---

    def _gradients(
        self, losses: Sequence[LoopCall], shares: Sequence[float] | None, counted: Sequence[int]
    ) -> list[dict[int, torch.Tensor]]:
        """At the arguments of each call of this rank, of the loss of all rows."""
        ranks = self._ranks
        if shares is not None:
            return ranks.together(
                lambda: [self._of([call], share)[0] for call, share in zip(losses, shares, strict=True)]
            )
        needed = [
            LoopCall(devices.move(call.inputs, devices.HOST), call.order, call.autocast, wanted=call.wanted)
            for call in losses
        ]
        by_rank = ranks.all_gather(needed)
        chosen = sorted(set(counted))
        together = [call for rank in chosen for call in by_rank[rank]]
        first = sum(len(by_rank[rank]) for rank in chosen if rank < counted[ranks.rank])
        found = ranks.together(lambda: self._of(together, 1.0) if together else [])
        return found[first : first + len(losses)]

    def _of(self, calls: Sequence[LoopCall], scale: float) -> list[dict[int, torch.Tensor]]:
        """At the arguments of each of the calls, of the loss of their rows together, times ``scale``."""
        assert self._loss is not None
        leaves = [[each.clone() for each in tensors.walk(call.inputs)] for call in calls]
        for call, of_call in zip(calls, leaves, strict=True):
            for each, wanted in zip(of_call, call.wanted, strict=True):
                each.requires_grad_(wanted)
        trees = [_with_leaves(call.inputs, of_call) for call, of_call in zip(calls, leaves, strict=True)]
        try:
            args, kwargs = trees[0] if len(trees) == 1 else tensors.concatenated(trees, of_batches=True)
        except ValueError as error:
            raise NotComparableError(
                f"{error} among the loss's arguments of the calls: state weight="
            ) from error
        function = copied_module(self._loss) if isinstance(self._loss, nn.Module) else self._loss
        with alone(), calls[0].autocast.entered():  # a module may keep something from call to call
            loss = function(*args, **kwargs)
        if not isinstance(loss, torch.Tensor) or loss.dim():
            raise NotComparableError(
                "the loss returns no scalar tensor: watch a function of what a single device minimizes"
            )
        ends = [each for of_call in leaves for each in of_call if each.requires_grad]
        gradients = torch.autograd.grad(loss * scale, ends, allow_unused=True) if ends else ()
        found = {id(each): gradient for each, gradient in zip(ends, gradients, strict=True)}
        return [
            {place: found[id(each)] for place, each in enumerate(of_call) if found.get(id(each)) is not None}
            for of_call in leaves
        ]


def are_alike(numbers: Sequence[float]) -> bool:
    """Whether they are the same but for rounding."""
    return bool(numbers) and max(numbers) - min(numbers) < 1e-3 * max(map(abs, numbers))


def scalar_place(call: LoopCall) -> int | None:
    """Which of the outputs is the loss: the first scalar that the loop differentiated."""
    places = (place for place, each in enumerate(call.leaves) if each.dim() == 0 and place in call.gradients)
    return next(places, None)


def loss_of_all_rows(
    losses: Sequence[LoopCall], weighed: Weighed | None, ranks: LoopRanks, counted: Sequence[int]
) -> float:
    """The loss of all rows, as observed; the mean of the calls where their shares are not known."""
    values = [_value_of(call) for call in losses]
    shares = weighed.shares if weighed is not None else None
    terms = [value * share for value, share in zip(values, shares or [1.0] * len(values), strict=True)]
    by_rank = ranks.all_gather(terms)
    found = [each for rank in sorted(set(counted)) for each in by_rank[rank]]
    return sum(found) if shares is not None else sum(found) / max(1, len(found))


def _value_of(call: LoopCall) -> float:
    if call.value is not None:
        return float(call.value) if call.value.numel() == 1 else math.nan
    place = scalar_place(call)
    return math.nan if place is None else float(call.leaves[place])


def _set_factor(call: LoopCall, expected: dict[int, torch.Tensor]) -> float:
    """How far the loop's gradient is from any multiple of the expected one; sets the call's factor."""
    call.factor, fitted = math.nan, multiple(call.gradients, expected)
    if fitted is None:
        return 0.0
    (call.factor,) = fitted.factors
    eps = max(torch.finfo(each.dtype).eps for place, each in expected.items() if place in call.gradients)
    return fitted.apart if fitted.apart > max(100 * eps, APART) else 0.0


def _with_leaves(tree: Any, leaves: Sequence[torch.Tensor]) -> Any:
    following = iter(leaves)
    return tensors.map_tensors(lambda _: next(following), tree)
