"""Weights: how many times as much the loop counts each call as the loss of all rows of all ranks does.

The gradient that the loop brings to the loss's arguments is compared with that of the loss of all rows: their
ratio is the factor of the call. What a call counts in the loss of all rows is measured (``counts``), or the
user's ``weight`` says it, or the rows of all calls are joined to one batch.

Losses of one backward pass are the terms of one objective, and may have coefficients of their own: compared
are the factors of the same term over all passes and ranks. A term that has one factor everywhere is right.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from typing import Any

import torch
from torch import nn

from dpexp import devices
from dpexp.config.errors import NotComparableError
from dpexp.copies import copied_module
from dpexp.verification.alone import alone
from dpexp.verification.diagnosis.patterns import multiple, scalings
from dpexp.watch.averages import Known, Value, decided, form, measured
from dpexp.watch.calls import Call, Window, detached_copy
from dpexp.watch.counts import Average, Counted, counted_alike, scalar_of, shares_of, totals
from dpexp.watch.factors import factors_of, joined, of_each
from dpexp.watch.ranks import LoopRanks
from dpexp.watch.replay import Replay

SAME = 1e-3
"""Factors that differ by less are the same, but for rounding."""
DRIFT = 0.02
"""Nobody writes coefficients that are nearer to each other."""
UNSTATED = (
    "{cause}, or the loss has this coefficient ({times:.4g}), or several terms, which cannot be told apart: "
    "name the function that returns the whole loss (loss=)"
)
STATE_WEIGHT = "state weight=, a function of the loss's arguments (of the model's where the loss is inside)"


@dataclass(frozen=True)
class Weighed:
    """What the loop counts. ``factors`` are those of this rank's calls, ``of_penalties`` of its penalties.

    ``of_losses`` are the factors of the losses of all ranks that count; ``shares`` are those of this rank's
    losses in the loss of all rows, where known. ``cause`` says how the loop counts losses otherwise than a
    single device. ``apart``: how far a gradient of the loop is from any multiple of the expected one.
    ``is_known``: the loss of all rows, computed alone, is that of the loop. ``times`` are the scales that the
    gradients may have beside 1; ``is_free``: any one, since the loop says what its loss is divided by, unless
    it is one of the usual errors. Where losses are not ``is_whole`` the loop may differentiate a multiple of
    them; ``unknown`` says why that one cannot be told from a usual error. ``rules`` are what the terms were
    found to average over, which the next step may take as known.
    """

    factors: Sequence[float]
    of_penalties: Sequence[float]
    of_losses: Sequence[float] = ()
    shares: Sequence[float] | None = None
    cause: str = ""
    apart: float = 0.0
    is_known: bool = True
    times: Sequence[float] = (1.0,)
    terms: int = 1
    is_free: bool = False
    is_whole: bool = True
    unknown: str = ""
    rules: Mapping[str, Known] = field(default_factory=dict)


@dataclass(frozen=True)
class Term:
    """The losses of one place in every backward pass: ``own`` are this rank's, by their number.

    ``factors`` are those of this rank, ``everywhere`` those of all ranks that count: of the loss times its
    ``coefficient``, where that is known. ``rule``: what it averages over, where that is beyond doubt.
    """

    own: Sequence[int]
    factors: Sequence[float]
    everywhere: Sequence[float]
    counted: Counted
    cause: str
    apart: float
    is_known: bool
    coefficient: float | None
    rule: Known | None = None


def unweighed(window: Window) -> Weighed:
    """Where no loss is known: every call counts as in the loop, at a scale that is the loop's."""
    return Weighed([1.0] * len(window.calls), [1.0] * len(window.penalties), is_free=True)


class Weighing:
    """What the loop counts in one step. ``weight`` is the user's. ``counted`` are the ranks that count.

    ``known`` are the rules of the step before.
    """

    def __init__(
        self,
        weight: Any,
        ranks: LoopRanks,
        replay: Replay,
        counted: Sequence[int],
        known: Mapping[str, Known] | None = None,
    ) -> None:
        self._weight, self._ranks, self._replay, self._known = weight, ranks, replay, known or {}
        self._chosen, self._of = sorted(set(counted)), counted[ranks.rank]
        self._within = SAME

    def weigh(self, window: Window, losses: Sequence[Call]) -> Weighed:
        """``losses`` are the calls of losses, or of the model with the loss inside.

        Every rank must call this. Raises NotComparableError.
        """
        self._within = max(SAME, max(self._ranks.all_gather(rounding_of(losses))))
        keys, objectives = _objectives(window, losses)
        by_rank = self._ranks.all_gather(objectives)
        chosen = [each for rank in self._chosen for each in by_rank[rank]]
        passes = max(len(by_rank[rank]) for rank in self._chosen)
        terms = {
            name: self._term(losses, [place for place, key in enumerate(keys) if key == name], name)
            for name in sorted(frozenset[str]().union(*chosen))
        }
        weighed = self._weighed(window, losses, [*terms.values()], len(set(chosen)) > 1, passes)
        return replace(weighed, rules={name: each.rule for name, each in terms.items() if each.rule})

    def _weighed(
        self, window: Window, losses: Sequence[Call], terms: Sequence[Term], is_mixed: bool, passes: int
    ) -> Weighed:
        """What the terms together say."""
        factors = {
            place: factor for term in terms for place, factor in zip(term.own, term.factors, strict=True)
        }
        unlike = [term for term in terms if not are_alike(term.everywhere, self._within)]
        is_alone = len(terms) == 1 and not is_mixed
        everywhere = [each for term in terms for each in term.everywhere]
        is_multiple = not any(term.apart for term in terms)
        if unlike and is_multiple and not any(term.cause for term in unlike):
            spread = max(_spread(term.everywhere) for term in unlike)
            if not is_alone or (spread > DRIFT and not terms[0].counted.is_joined):
                raise NotComparableError(
                    f"the loop gives the losses other weights than the loss of all rows does "
                    f"({shown(unlike[0].everywhere)} instead of 1), by no rule that is known: if they are "
                    f"meant, {STATE_WEIGHT}"
                )
        means = [_mean(term.everywhere) for term in terms]
        scale = max(means, key=abs, default=1.0) or 1.0
        is_stated = all(term.coefficient is not None for term in terms)
        times = {1.0} if is_alone or is_stated else {1.0, scale / (sum(means) or scale)}
        coefficient = terms[0].coefficient if is_alone else None
        usual = scalings(len(self._chosen), "rank", passes).items() if coefficient is not None else ()
        like = [cause for cause, value in usual if abs((coefficient or 0) / value - 1) < 1e-3]

        def of(places: Sequence[int]) -> float:
            """The factor of what leads to these losses."""
            own = [factors[place] for place in places if place in factors]
            return _mean(own) if own and is_alone else scale

        is_inside = losses is window.calls
        places = {each.place for each in losses}  # of a function that the program calls from two places
        is_called_twice = len({instruction for instruction, _ in places}) < len(places)
        has_others = not is_inside and not all(call.losses for call in window.calls)  # of a loss not observed
        own = [of([place] if is_inside else call.losses) for place, call in enumerate(window.calls)]
        penalties = [
            of([place for place, loss in enumerate(losses) if loss.backward == each.backward])
            for each in window.penalties
        ]
        return Weighed(
            own,
            penalties,
            everywhere,
            terms[0].counted.shares if is_alone else None,
            next((term.cause for term in unlike if term.cause), ""),
            max(term.apart for term in terms),
            all(term.is_known for term in terms),
            sorted(times),
            len(terms),
            any(term.counted.is_free for term in terms)
            or is_mixed
            or not are_alike(means, self._within)
            or has_others,
            is_stated or (all(each.is_whole for each in losses) and not is_called_twice),
            UNSTATED.format(cause=" or ".join(like), times=coefficient) if like else "",
        )

    # --- one term ---

    def _term(self, losses: Sequence[Call], places: Sequence[int], name: str) -> Term:
        """Every rank must call this for the same terms in the same order.

        A rule that was not measured on all calls is taken where nothing speaks against it: else all are.
        """
        own, ranks = [losses[place] for place in places], self._ranks
        pairs = [(each, self._value(each)) for each in own]
        known = self._known.get(name) if self._weight is None else None
        if known is not None and known.covers(own, ranks):
            term = self._counted_as(places, own, self._shares(own, known.average))
            is_same = are_alike([_mean(term.everywhere), known.factor], self._within)
            if self._is_as_if_right(term) and (is_same or term.counted.is_free):
                return replace(term, rule=known)
        if self._weight is None and (average := decided(pairs, ranks)) is not None:
            term = self._counted_as(places, own, self._shares(own, average))
            if self._is_as_if_right(term):
                forms = frozenset(map(form, own))
                return replace(term, rule=Known(average, forms, _mean(term.everywhere)))
        return self._counted_as(places, own, self._counted(own, pairs), may_join=True)

    def _is_as_if_right(self, term: Term) -> bool:
        return not term.apart and are_alike(term.everywhere, self._within)

    def _shares(self, own: Sequence[Call], average: Average) -> Counted:
        return shares_of([each.inputs for each in own], average, self._ranks, self._chosen)

    def _counted_as(
        self, places: Sequence[int], own: Sequence[Call], counted: Counted, may_join: bool = False
    ) -> Term:
        ranks = self._ranks
        if not any(ranks.all_gather(any(each.function is not None for each in own))):
            assert counted.shares is not None
            of_calls = zip(own, counted.shares, strict=True)
            factors = [
                float(call.gradients[scalar_place(call) or 0]) / (share or math.nan)
                for call, share in of_calls
            ]
            apart, of_all = 0.0, math.nan
        else:
            factors, apart, of_all, counted = self._fitted(own, counted, may_join)
        by_rank = ranks.all_gather((factors, apart))
        known = [each for of_rank, _ in by_rank for each in of_rank if math.isfinite(each) and each]
        like = known[0] if known else 1.0  # a loss without a gradient has the factor of the others
        whole = [
            [each if math.isfinite(each) and each else like for each in of_rank] for of_rank, _ in by_rank
        ]
        coefficient = self._coefficient(own)
        if coefficient is not None and not counted.is_free:
            whole = [[each / coefficient for each in of_rank] for of_rank in whole]
        everywhere = [each for rank in self._chosen for each in whole[rank]]
        cause = self._cause(own, whole, counted)
        is_known = all(math.isclose(_value_of(each), of_all, rel_tol=1e-3) for each in own)
        return Term(
            places,
            whole[ranks.rank],
            everywhere,
            counted,
            cause,
            max(far for _, far in by_rank),
            all(ranks.all_gather(is_known)),
            coefficient,
        )

    def _coefficient(self, own: Sequence[Call]) -> float | None:
        """That of the loss in what the loop says to minimize; None where it is not one for all calls."""
        by_rank = self._ranks.all_gather([each.coefficient for each in own])
        found = [each for rank in self._chosen for each in by_rank[rank]]
        known = [each for each in found if each]
        return known[0] if known and len(known) == len(found) and are_alike(known, self._within) else None

    def _fitted(
        self, own: Sequence[Call], counted: Counted, may_join: bool
    ) -> tuple[list[float], float, float, Counted]:
        """The factors of losses, how far one is from any multiple, the loss of all rows if that is computed,
        and what each call counts.

        Where factors differ by a rule that was measured on each call alone, the rows of all calls together
        say them, if these can be joined.
        """
        ranks, value = self._ranks, math.nan
        if counted.shares is None:
            of_all, value = joined(own, ranks, self._chosen, self._of)
            factors, apart = factors_of(own, of_all)
        else:
            factors, apart = ranks.together(lambda: factors_of(own, of_each(own), counted.shares))
        everywhere = [each for of_rank in ranks.all_gather(factors) for each in of_rank]
        of_rule = factors, apart, value, counted
        is_measured = may_join and self._weight is None and not counted.is_free
        if not is_measured or are_alike(everywhere, self._within):
            return of_rule
        try:
            if counted.shares is not None:
                of_all, _ = joined(own, ranks, self._chosen, self._of)
            shares = ranks.together(
                lambda: [multiple(one, all_) for one, all_ in zip(of_all, of_each(own), strict=True)]
            )
        except NotComparableError:
            return of_rule
        if any(ranks.all_gather(any(each is None for each in shares))):
            return of_rule
        found = [each.factors[0] for each in shares if each is not None]
        rule = counted.rule if counted.shares is not None else "weights"
        return *factors_of(own, of_all), value, Counted(found, rule, is_joined=True)

    def _cause(self, own: Sequence[Call], factors: Sequence[Sequence[float]], counted: Counted) -> str:
        """Which known rule the loop follows where a single device follows another; empty if none."""
        everywhere = [each for rank in self._chosen for each in factors[rank]]
        if counted.shares is None or are_alike(everywhere, self._within):
            return ""
        kinds = self._ranks.all_gather(counted_alike([each.inputs for each in own]))
        by_rank = self._ranks.all_gather(list(counted.shares))
        share_of = [each for rank in self._chosen for each in by_rank[rank]]
        every = [factor * share for factor, share in zip(everywhere, share_of, strict=True)]
        scale = sum(every) / (sum(share_of) or 1.0) or 1.0
        instead = f"(weights {shown([each / scale for each in everywhere])} instead of 1)"
        is_of_ranks = (
            all(are_alike(factors[rank], self._within) for rank in self._chosen) and len(self._chosen) > 1
        )
        of = "ranks" if is_of_ranks else "micro-batches"
        what = counted.rule.partition(" ")[0]
        if what == "sum":  # what differs between the calls, or between the ranks?
            for kind in ("labels", "rows"):
                of_calls = [each for rank in self._chosen for each in kinds[rank][kind]]
                of_ranks = [sum(kinds[rank][kind]) for rank in self._chosen for _ in kinds[rank][kind]]
                for weights, counts in product((every, everywhere), (of_calls, of_ranks)):
                    is_mean = are_alike([a * b for a, b in zip(weights, counts, strict=True)], self._within)
                    if all(counts) and is_mean and not are_alike(counts, self._within):
                        return f"{of} of unequal {kind} are averaged as if equal {instead}"
            return ""
        if are_alike(every, self._within):
            return f"{of} of unequal {what or 'rows'} are averaged as if equal {instead}"
        numbers = [len(by_rank[rank]) for rank in self._chosen for _ in by_rank[rank]]
        if are_alike([a * b for a, b in zip(every, numbers, strict=True)], self._within):
            return f"ranks of unequal numbers of micro-batches are averaged as if equal {instead}"
        totals = [sum(kinds[rank].get(what, ())) for rank in self._chosen for _ in by_rank[rank]]
        if all(totals) and are_alike([a * b for a, b in zip(everywhere, totals, strict=True)], self._within):
            return f"ranks of unequal {what} are averaged as if equal {instead}"
        rows = [each for rank in self._chosen for each in kinds[rank]["rows"]]
        if all(rows) and are_alike([a / b for a, b in zip(every, rows, strict=True)], self._within):
            return f"{of} are weighted by their rows, and the loss averages over {what} {instead}"
        return ""

    def _counted(self, own: Sequence[Call], pairs: Sequence[tuple[Call, Value]]) -> Counted:
        """What each loss counts in that of all rows: as the user says, or measured on all calls."""
        weight, ranks = self._weight, self._ranks
        if callable(weight):
            counts = ranks.together(
                lambda: [float(weight(*each.inputs[0], **each.inputs[1])) for each in own]
            )
            total, _ = totals(counts, ranks, self._chosen)
            return Counted([each / total if total else 0.0 for each in counts], "weights")
        if weight == "sum":
            return Counted([1.0] * len(own), "sum")
        if (average := measured(pairs, ranks, self._chosen)) is not None:
            return self._shares(own, average)
        if any(ranks.all_gather(any(each.function is None for each in own))):
            is_rule = "is not a mean over rows or labels, nor a sum"
            why = "is not tried alone with replica='blocks'" if self._replay.blocks else is_rule
            raise NotComparableError(
                f"the loss inside the model {why}: state weight=, a function of the model's inputs"
            )
        return Counted(None, "")

    def _value(self, call: Call) -> Value:
        """The loss as a function of inputs, on the host, where labels that it does not know raise."""
        loss, autocast = call.function, call.autocast._replace(kind="cpu")

        @cache
        def on_host() -> Any:
            function = self._replay.on_host().scalar if loss is None else loss
            return copied_module(function).cpu() if isinstance(function, nn.Module) else function

        def value(inputs: Any) -> float:
            args, kwargs = detached_copy(devices.move(inputs, devices.HOST))  # it may write to them
            function = on_host()
            with torch.no_grad(), alone(), autocast.entered():
                return float(scalar_of(function(*args, **kwargs)))

        return value


def rounding_of(calls: Sequence[Call]) -> float:
    """How far a factor may be off by the rounding of gradients, of the narrowest type."""
    found = [each for call in calls for each in call.gradients.values()]
    return 0.75 * max((torch.finfo(each.dtype).eps for each in found), default=0.0)


def are_alike(numbers: Sequence[float], within: float) -> bool:
    """Whether they are the same but for rounding."""
    return not numbers or _spread(numbers) < within


def _spread(numbers: Sequence[float]) -> float:
    return (max(numbers) - min(numbers)) / (max(map(abs, numbers)) or 1.0)


def shown(numbers: Sequence[float]) -> str:
    """Three digits of each of the first."""
    some = ", ".join(f"{each:.3g}" for each in numbers[:8])
    return some + ", …" * (len(numbers) > 8)


def scalar_place(call: Call) -> int | None:
    """Which of the outputs is the loss: the first scalar that the loop differentiated."""
    places = (place for place, each in enumerate(call.leaves) if each.dim() == 0 and place in call.gradients)
    return next(places, None)


def loss_of_all_rows(
    losses: Sequence[Call], shares: Sequence[float] | None, ranks: LoopRanks, counted: Sequence[int]
) -> float:
    """The loss of all rows, as observed; the mean of the calls where their shares are not known."""
    values = [_value_of(call) for call in losses]
    terms = [value * share for value, share in zip(values, shares or [1.0] * len(values), strict=True)]
    by_rank = ranks.all_gather((shares is not None, terms))
    found = [each for rank in sorted(set(counted)) for each in by_rank[rank][1]]
    return sum(found) if any(known for known, _ in by_rank) else sum(found) / max(1, len(found))


def _objectives(window: Window, losses: Sequence[Call]) -> tuple[list[str], list[frozenset[str]]]:
    """For each loss which term of an objective it is, and the terms of each objective.

    Of one objective are losses of one backward pass, and those that one call of the model leads to. A term
    is the first, the second, ... loss that one instruction of the program calls: a GAN's losses of real and
    of generated rows are two terms, those of micro-batches one.
    """
    first = list(range(len(losses)))
    of_passes = [
        [place for place, each in enumerate(losses) if each.backward == number]
        for number in {each.backward for each in losses}
    ]
    of_calls = [call.losses for call in window.calls] if losses is not window.calls else []
    for places in (*of_passes, *of_calls):
        some = {first[place] for place in places}
        first = [min(some) if each in some else each for each in first]
    before: Counter[Any] = Counter()
    keys, terms = [], defaultdict[int, set[str]](set)
    for number, each in zip(first, losses, strict=True):
        instruction, _ = each.place
        before[number, instruction] += 1
        keys.append(f"{instruction} {before[number, instruction]}")
        terms[number].add(keys[-1])
    return keys, [*map(frozenset, terms.values())]


def _value_of(call: Call) -> float:
    if call.function is not None:
        return float(call.value) if call.value is not None and call.value.numel() == 1 else math.nan
    place = scalar_place(call)
    return math.nan if place is None else float(call.leaves[place])


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)
