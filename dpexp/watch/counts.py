"""Counts: what the loss of a call counts in the loss of all rows of all ranks.

loss                            rule                    share of a call
the mean over rows              rows                    its rows / all rows
the mean over what counts       labels                  its labels that are not PADDING / all of these
the same of shifted labels      labels after the first  those after the first of each row / all of these
a sum                           sum                     1, at a scale that the loop chooses
a sum divided by an argument n  that whose total is n   n / all labels

    loss(a, b) = share(a) loss(a) + share(b) loss(b)

What a loss averages over is measured by halves of its rows, and whether an argument divides it by evaluating
the loss with n and with 2n: by halves a sum over labels divided by n is a sum, whatever n is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dpexp import tensors
from dpexp.config.errors import NotComparableError
from dpexp.config.features import PADDING
from dpexp.data.objective import counted, shares
from dpexp.watch.calls import Call
from dpexp.watch.ranks import LoopRanks

Value = Callable[[Any], float]
"""A loss as a function of its inputs (args, kwargs)."""
Rule = tuple[str, str]
"""The rule, and the path of the labels in the loss's arguments."""
ROWS: Rule = ("rows", "")
SUM: Rule = ("sum", "")
EXACT = 1e-4
"""A loss in float32 follows by a rule, or is halved where an argument is doubled, if it is so near."""
NEAR = 1e-3
"""So near a count is to a number that may be written in a short type."""
ALIKE = 1e-6
"""The rule of a loss in float32 fits within 1e-7; rules within this fit alike."""


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


def shares_of(
    losses: Sequence[Call], values: Sequence[Value], ranks: LoopRanks, chosen: Sequence[int]
) -> Counted:
    """Measured on this rank's losses; every rank must call this. ``chosen`` are the ranks that count."""
    pairs = list(zip(losses, values, strict=True))
    measured = ranks.together(
        lambda: [(rules(value, call.inputs), _divisor(value, call.inputs)) for call, value in pairs]
    )
    by_rank = ranks.all_gather(measured)
    every = [each for of_rank in by_rank for each in of_rank]
    known = [fits for fits, _ in every if fits is not None]
    fitting = set[Rule].intersection(*map(set, known)) if known else set()
    paths = {path for _, path in every}
    path = paths.pop() if len(paths) == 1 else None
    inputs = [each.inputs for each in losses]
    if not known and path:  # losses of one row each
        fitting, known = {SUM}, [{SUM: 0.0}]
    errors = _distinguished(
        {rule: max(each[rule] for each in known) for rule in fitting}, pairs, ranks, chosen
    )
    rule = min(errors, key=lambda rule: (errors[rule], rule), default=None)
    if rule is None:
        if any(ranks.all_gather(any(each.function is None for each in losses))):
            raise NotComparableError(
                "the loss inside the model is not a mean over rows or labels, nor a sum: state weight=, "
                "a function of the model's inputs"
            )
        return Counted(None, "")
    divisors = [float(dict(tensors.leaves(each))[path]) if path else 1.0 for each in inputs]
    if rule == SUM and path:
        return _divided(inputs, divisors, ranks, chosen)
    if rule == SUM:
        return Counted([1.0] * len(losses), "sum", is_free=True)
    counts = [count(rule, each) for each in inputs]
    total = totals(counts, ranks, chosen)[0]
    shares = [each / total * n if total else 0.0 for each, n in zip(counts, divisors, strict=True)]
    return Counted(shares, " ".join(rule).strip())


def _distinguished(
    errors: Mapping[Rule, float],
    pairs: Sequence[tuple[Call, Value]],
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
    found = ranks.together(lambda: [rules(value, _moved(call)) for call, value in pairs if call.function])
    moved = [each for of_rank in ranks.all_gather(found) for each in of_rank if each]
    return {rule: errors[rule] for rule in alike if all(rule in each for each in moved)} or errors


def _moved(call: Call) -> Any:
    """The inputs of a loss with other numbers where it has a gradient."""
    rng, wanted = torch.Generator().manual_seed(0), iter(call.wanted)

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return tensor + torch.randn(tensor.shape, generator=rng).to(tensor) if next(wanted) else tensor

    return tensors.map_tensors(moved, call.inputs)


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
        first = next((rule for rule in _kinds(each) if rule[0] == "labels"), None)
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
    kinds = [set(_kinds(each)) for each in inputs]
    by_rank = ranks.all_gather(sorted(set[Rule].intersection(*kinds)) if kinds else None)
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


def _kinds(inputs: Any) -> Iterator[Rule]:
    """What may be counted in the inputs."""
    yield ROWS
    for path, each in tensors.leaves(inputs):
        if isinstance(each, torch.Tensor) and each.dim() and each.dtype == torch.long:
            yield "labels", path
            if each.dim() > 1:
                yield "labels after the first", path


def _divisor(value: Value, inputs: Any) -> str | None:
    """The path of the number by which the loss is divided, if there is one."""
    numbers = [path for path, each in tensors.leaves(inputs) if _is_number(each)]
    try:
        loss = value(inputs) if numbers else 0.0
        for path in numbers:
            halved = value(_doubled(inputs, path))
            if loss and math.isfinite(loss) and math.isclose(2 * halved, loss, rel_tol=EXACT):
                return path
    except Exception:  # of the user's function, which may not take another number
        return None
    return None


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not value.dim() and value.dtype != torch.bool and not value.requires_grad and bool(value > 0)
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _doubled(value: Any, path: str, at: str = "") -> Any:
    """The pytree with twice the number at the path."""
    if at == path:
        return value * 2
    inside = None if isinstance(value, torch.Tensor) else tensors.entries(value)
    if inside is None:
        return value
    return tensors.rebuild(value, [_doubled(each, path, at + step) for step, each in inside])


# --- by halves of the rows ---


def rules(loss: Callable[[Any], float], inputs: Any) -> dict[Rule, float] | None:
    """The rules by which the loss follows from those of two halves, with their errors; None for one row.

    ``inputs`` are nested tensors ``(rows, …)``. One half also gets more labels to ignore, by which labels
    differ from rows.
    """
    rows = int(count(ROWS, inputs))
    if rows < 2:
        return None
    leaves = dict(tensors.leaves(inputs))
    kinds = [(kind, path) for kind, path in _kinds(inputs) if not path or len(leaves[path]) == rows]
    known: dict[Rule, float] = dict.fromkeys([SUM, *kinds], 0.0)
    labels = [path for kind, path in kinds if kind == "labels"]
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
