"""Averages: what a loss averages over, measured by its values on halves of its rows.

Whether an argument divides it is measured by evaluating the loss with n and with 2n: by halves a sum over
labels divided by n is a sum, whatever n is.

    first calls of a step   decided    one rule, on whatever part of the arguments is zero
    the next steps          Known      the same rule for calls of the same form
    all calls of a step     measured   where the first do not decide it, or factors are not as they were
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dpexp import tensors
from dpexp.config.features import PADDING
from dpexp.data.objective import shares
from dpexp.watch.calls import Call
from dpexp.watch.counts import NEAR, ROWS, SUM, Average, Rule, count, kinds
from dpexp.watch.ranks import LoopRanks

Value = Callable[[Any], float]
"""A loss as a function of its inputs (args, kwargs)."""
Pairs = Sequence[tuple[Call, Value]]
EXACT = 1e-4
"""A loss in float32 follows by a rule, or is halved where an argument is doubled, if it is so near."""
ALIKE = 1e-6
"""The rule of a loss in float32 fits within 1e-7; rules within this fit alike."""


@dataclass(frozen=True)
class Known:
    """What the loss of one term averages over, as an earlier step has decided it.

    ``forms`` are those of its calls on this rank, ``factor`` is that of all calls of all ranks.
    """

    average: Average
    forms: frozenset[Any]
    factor: float

    def covers(self, losses: Sequence[Call], ranks: LoopRanks) -> bool:
        """Whether all calls have a known form; every rank must call this."""
        return all(ranks.all_gather(self.forms.issuperset(map(form, losses))))


def form(call: Call) -> Any:
    """What is the same for calls of one function, whose tensors have other sizes and numbers."""

    def of(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.dtype, leaf.dim()
        return leaf if isinstance(leaf, str | bool | None) else type(leaf)

    function = getattr(call.function, "__func__", call.function)  # a bound method is made anew each time
    return id(function), *((path, of(leaf)) for path, leaf in tensors.leaves(call.inputs))


def decided(pairs: Pairs, ranks: LoopRanks) -> Average | None:
    """By the first call of each form on each rank, where these leave no doubt; every rank must call this."""
    first = {form(call): (call, value) for call, value in reversed(pairs)}
    own = ranks.together(lambda: [_sure(value, call.inputs) for call, value in first.values()])
    every = {each for of_rank in ranks.all_gather(own) for each in of_rank}
    return every.pop() if len(every) == 1 else None


def measured(pairs: Pairs, ranks: LoopRanks, chosen: Sequence[int]) -> Average | None:
    """By all calls; None where only the loss of all rows says it. Every rank must call this.

    ``chosen`` are the ranks that count.
    """
    found = ranks.together(
        lambda: [(rules(value, call.inputs)[0], _divisor(value, call.inputs)) for call, value in pairs]
    )
    every = [each for of_rank in ranks.all_gather(found) for each in of_rank]
    known = [fits for fits, _ in every if fits is not None]
    fitting = set[Rule].intersection(*map(set, known)) if known else set()
    paths = {path for _, path in every}
    path = paths.pop() if len(paths) == 1 else ""
    if not known and path:  # losses of one row each
        fitting, known = {SUM}, [{SUM: 0.0}]
    errors = _distinguished(
        {rule: max(each[rule] for each in known) for rule in fitting}, pairs, ranks, chosen
    )
    rule = min(errors, key=lambda rule: (errors[rule], rule), default=None)
    return None if rule is None else Average(rule, path)


def _distinguished(
    errors: Mapping[Rule, float],
    pairs: Pairs,
    ranks: LoopRanks,
    chosen: Sequence[int],
) -> Mapping[Rule, float]:
    """The rules that fit at other arguments, too, where several fit alike and give the losses other shares.

    While all rows have the same loss every rule fits: of preferences at the first step, of outputs of zeros.
    """
    alike = sorted(rule for rule, error in errors.items() if error <= max(ALIKE, min(errors.values())))
    by_rank = ranks.all_gather({rule: [count(rule, call.inputs) for call, _ in pairs] for rule in alike})
    counts = [[each for rank in chosen for each in by_rank[rank][rule]] for rule in alike]
    shares = [[each / (sum(of_rule) or 1.0) for each in of_rule] for of_rule in counts]
    if all(math.isclose(a, b, rel_tol=NEAR) for each in shares for a, b in zip(each, shares[0], strict=True)):
        return errors
    found = ranks.together(lambda: [rules(value, _moved(call))[0] for call, value in pairs if call.function])
    moved = [each for of_rank in ranks.all_gather(found) for each in of_rank if each]
    return {rule: errors[rule] for rule in alike if all(rule in each for each in moved)} or errors


def _moved(call: Call) -> Any:
    """The inputs of a loss with other numbers where it has a gradient."""
    rng, wanted = torch.Generator().manual_seed(0), iter(call.wanted)

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return tensor + torch.randn(tensor.shape, generator=rng).to(tensor) if next(wanted) else tensor

    return tensors.map_tensors(moved, call.inputs)


def _divisor(value: Value, inputs: Any) -> str:
    """The path of the number by which the loss is divided, empty without one."""
    numbers = [path for path, each in tensors.leaves(inputs) if _is_number(each)]
    try:
        loss = value(inputs) if numbers else 0.0
        for path in numbers:
            halved = value(_changed(inputs, path, lambda number: number * 2))
            if loss and math.isfinite(loss) and math.isclose(2 * halved, loss, rel_tol=EXACT):
                return path
    except Exception:  # of the user's function, which may not take another number
        return ""
    return ""


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not value.dim() and value.dtype != torch.bool and not value.requires_grad and bool(value > 0)
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _changed(value: Any, path: str, change: Callable[[Any], Any], at: str = "") -> Any:
    """The pytree with another leaf at the path."""
    if at == path:
        return change(value)
    inside = None if isinstance(value, torch.Tensor) else tensors.entries(value)
    if inside is None:
        return value
    return tensors.rebuild(value, [_changed(each, path, change, at + step) for step, each in inside])


# --- by halves of the rows ---


def rules(loss: Value, inputs: Any) -> tuple[dict[Rule, float] | None, bool]:
    """The rules by which the loss follows from those of two halves, with their errors; None for one row. And
    whether it did so with whatever labels.

    ``inputs`` are nested tensors ``(rows, …)``. One half also gets more labels to ignore, by which labels
    differ from rows.
    """
    rows = int(count(ROWS, inputs))
    if rows < 2:
        return None, False
    leaves = dict(tensors.leaves(inputs))
    some = [(kind, path) for kind, path in kinds(inputs) if not path or len(leaves[path]) == rows]
    known: dict[Rule, float] = dict.fromkeys([SUM, *some], 0.0)
    given, is_sure = math.nan, True
    for path in ("", *(path for kind, path in some if kind == "labels")):
        try:
            losses, halves = _of_halves(loss, _with(inputs, path, PADDING) if path else inputs, rows)
        except Exception:  # ids that may not be ignored; the loss of the loop's own rows has been computed
            if not path:
                return {}, False
            continue
        if not path:
            given = losses[0]
        elif losses[0] == given:
            continue  # it does not read these labels
        if all(map(math.isfinite, losses)):
            fitting = {each: max(error, known[each]) for each, error in _errors(known, losses, halves)}
            known = fitting if fitting or not path else known  # labels that it does not ignore
            is_sure &= bool(fitting)
    return known, is_sure


def _sure(loss: Value, inputs: Any) -> Average | None:
    """The only rule that fits, also where a part of any tensor is zero, as a mask or weights may be."""
    found, is_sure = rules(loss, inputs)
    if not is_sure or found is None or len(found) != 1:
        return None
    rows = int(count(ROWS, inputs))
    try:
        given = loss(inputs)
        for path, each in tensors.leaves(inputs):
            if isinstance(each, torch.Tensor) and each.dim() and len(each) == rows:
                losses, halves = _of_halves(loss, _with(inputs, path, 0), rows)
                if losses[0] != given and not dict(_errors(found, losses, halves)):
                    return None
    except Exception:  # numbers that it may not take
        return None
    return Average(next(iter(found)), _divisor(loss, inputs))


def _of_halves(loss: Value, inputs: Any, rows: int) -> tuple[list[float], list[Any]]:
    """The losses of all rows and of two halves, and the halves."""
    halves = [_cut(inputs, rows, part) for part in (slice(0, rows // 2), slice(rows // 2, None))]
    return [loss(each) for each in (inputs, *halves)], halves


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


def _with(inputs: Any, path: str, number: int) -> Any:
    """The inputs with this number in most of the first rows of one tensor, not in the first of a row."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        changed, first = tensor.clone(), len(tensor) // 2
        if tensor.dim() > 1:
            changed[:first, ..., 1:-1] = number
        else:
            changed[:first:2] = number
        return changed

    return _changed(inputs, path, change)
