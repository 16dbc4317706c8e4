"""Explain: what is found of a loop, and why gradients are not those of a single device, in words.

What the optimizer got is written as a sum of what each call of each rank should add to it, and of what the
step before has left, by least squares. Of a right loop every factor is 1; the factors of a wrong one say what
it does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from dpexp.config.errors import NotComparableError, VerificationError
from dpexp.config.words import listed, plural
from dpexp.verification.compare import Difference
from dpexp.verification.diagnosis.patterns import Fit, Moments, fit, scalings
from dpexp.verification.result import row_of
from dpexp.watch.calls import Call
from dpexp.watch.expected import Observed, Step, Tensors
from dpexp.watch.gradients import Sides
from dpexp.watch.ranks import LoopRanks
from dpexp.watch.shards import sampled
from dpexp.watch.weights import UNSTATED, are_alike, shown

FITS = 2e-3
"""A sum that is so far from the gradients, beside their size, is what they are."""
SAME = 0.01
"""Factors that differ by so much are different."""
MOST_DIVISOR = 1000
OWN_ROWS = "the gradients of its own rows only"


@dataclass(frozen=True)
class LoopFinding:
    """The optimizer step, counted from 1, what kind of tensors differ, which, and the cause in words."""

    step: int
    kind: str
    what: str
    cause: str = ""
    worst: Difference | None = None

    def __str__(self) -> str:
        return f"step {self.step}: {self.kind}: {self.what}" + f": {self.cause}" * bool(self.cause)

    def error(self) -> VerificationError:
        """The error of a loop of which this was found."""
        where = row_of(self.worst) or {"kind": self.kind, "step": self.step}
        text = f"the loop does not compute what a single device computes: {self}"
        return VerificationError(text, **where, cause=str(self))


class FoundError(Exception):
    """Ends the comparison of a step with a finding, unless the optimizer itself synchronizes ranks."""

    def __init__(self, finding: LoopFinding) -> None:
        super().__init__(str(finding))
        self.finding = finding


@dataclass(frozen=True)
class Case:
    """What the optimizer got beside the sums (``sides``), of which so much is ``kept`` by clipping.

    ``carried`` are what passes before the step of another optimizer would add: ``sampled``. ``wrong`` are the
    names of the parameters that differ. ``clip`` is the limit of clipping, or the user's function;
    ``misplaced`` is what is wrong with the calls that clip. ``hooked`` are parameters with hooks that the
    model as written had not. ``is_partial``: another optimizer holds the rest of it.
    """

    observed: Observed
    step: Step
    sides: Sides
    kept: float
    carried: Sequence[Tensors] | None
    wrong: Sequence[str]
    clip: Any
    misplaced: Sequence[str]
    hooked: Sequence[str]
    is_partial: bool

    @property
    def ranks(self) -> LoopRanks:
        """All of them."""
        return self.sides.ranks


def explain(case: Case) -> str:
    """The cause in words; every rank must call this.

    Raises NotComparableError where a right loop may have these gradients.
    """
    ranks, sides, names = case.ranks, case.sides, list(case.sides.sums)
    own = case.step.expected.columns, case.carried or (), case.misplaced, _what_may_be_meant(case)
    of_passes, of_carried, misplaced, meant = zip(*ranks.all_gather(own), strict=True)
    case = replace(case, misplaced=list(dict.fromkeys(chain(*misplaced))))
    why = next(filter(None, meant), "")
    chosen = sorted(set(case.step.counted))
    calls = [(rank, number) for rank in chosen for number in range(len(of_passes[rank]))]
    columns = [of_passes[rank][number] for rank, number in calls]
    carried = [each for rank in chosen for each in of_carried[rank]]
    of_own = {name: sampled(each, sides.held[name]) for name, each in sides.found.items()}
    left = {name: each for name, each in case.observed.residue.items() if name in sides.held}
    found, residue = sides.shards.summed(of_own), sides.shards.summed(left)
    if not all(ranks.all_gather(_is_finite(found))):
        return "it is not finite where the optimizer steps"
    if not all(ranks.all_gather(all(map(_is_finite, (*columns, residue))))):
        raise NotComparableError(
            "what a call should add is not finite, and the gradients are: the loop skips or scales the step"
        )

    def fitted(names: list[str], *, is_part: bool = False, others: Sequence[Tensors] = ()) -> _Factors | None:
        sides = [
            {name: side[name] for name in names if name in side}
            for side in (found, *columns, residue, *others)
        ]
        fits = ranks.all_gather(fit(sides[0], sides[1:]))
        return None if any(each.apart >= FITS for each in fits) else _Factors(case, fits, calls, is_part, why)

    if (of_all := fitted(names)) is not None:
        return _with_clipping(case, of_all.cause())
    if case.carried is None or (carried and fitted(names, others=carried) is not None):
        is_for_others = all(each.feeds_back for each in case.observed.carried.calls)
        if case.carried is not None and all(ranks.all_gather(is_for_others)):
            return "zero_grad is missing: gradients of a pass for another model's optimizer are in it"
        raise NotComparableError(
            "gradients from before the step of another optimizer are in it: if that is not meant, zero_grad "
            "is missing; else watch each optimizer's loop without the other"
        )
    if scaled := _scaled_shards(case):
        return _with_clipping(case, scaled)
    wrong = next(filter(None, ranks.all_gather(list(case.wrong))), [])
    if not wrong:
        return "only some ranks have it"
    some = f"{len(wrong)} of {len(names)} parameters are wrong, '{wrong[-1]}' last"
    of_last = fitted([wrong[-1]], is_part=True)
    if of_last is None or not of_last.is_of_ranks:
        _refuse(why)
    if of_last is not None:
        return _with_clipping(case, f"{some}: {of_last.cause()}")
    if case.misplaced:
        return f"{some}: {case.misplaced[0]}"
    return (
        f"{some}: it is not a sum of what the calls should add: a hook changes it, or the layout computes "
        "another backward"
    )


def _with_clipping(case: Case, cause: str) -> str:
    """All causes that hold."""
    return " and ".join(dict.fromkeys(filter(None, [cause, *case.misplaced])))


def _what_may_be_meant(case: Case) -> str:
    """By what nobody can see the loop or a hook changes gradients; empty if by nothing."""
    seen = case.observed
    if seen.is_edited:
        return (
            "the loop changes gradients after backward by code of its own: state that as clip_norm=, a "
            "function of the parameters, or watch the loop without it"
        )
    if case.hooked:
        return f"a hook of {listed(case.hooked)} may change its gradient: register it before dpexp.watch"
    if seen.hook:
        return f"DDP's communication hook {seen.hook} changes gradients: watch the loop without it"
    if seen.is_by_grad:
        return "gradients were taken by torch.autograd.grad: what the loop does with them is not seen"
    return ""


def _refuse(why: str) -> None:
    """Raise NotComparableError for a reason, if there is one."""
    if why:
        raise NotComparableError(why)


class _Factors:
    """Those of the ``calls`` (rank, number of the pass) of all ranks, as each rank has them, unclipped.

    ``kept`` is what that clipping leaves. ``is_part``: they are those of one parameter. ``meant`` says why
    other gradients may be right.
    """

    def __init__(
        self, case: Case, fits: Sequence[Fit], calls: Sequence[tuple[int, int]], is_part: bool, meant: str
    ) -> None:
        self.case, self.observed, self.weighed = case, case.observed, case.step.weighed
        self.calls, self.is_part, self.meant = calls, is_part, meant
        self.size = len(set(case.step.counted))
        self.micro = max((number for _, number in calls), default=0) + 1
        self.kept = case.kept
        self.by_rank = [[factor / self.kept for factor in fit.factors[: len(calls)]] for fit in fits]
        self.of_residue = [fit.factors[len(calls)] for fit in fits]
        self.most = max((abs(each) for of_rank in self.by_rank for each in of_rank), default=0.0)

    def cause(self) -> str:
        """All that holds, in one sentence."""
        causes = []
        if any(abs(each) > SAME for each in self.of_residue):
            causes.append(
                "the gradients of the step before are in it: zero_grad is missing, or comes too late"
            )
        if not any(each.found for each in self.case.sides.moments.values()):
            synchronized = ", or never synchronized" if self.size > 1 else ""
            return f"it is zero when the optimizer steps: zero_grad between backward and step{synchronized}?"
        everywhere = [each for of_rank in self.by_rank for each in of_rank]
        if max(everywhere) - min(everywhere) < 5 * FITS * self.most:
            times = sum(everywhere) / len(everywhere)
            if not causes:
                causes.append(self._of_scale(times))
            elif abs(times - 1) > SAME and self.weighed.is_whole and not self.weighed.is_free:
                causes += self._scalings(times, self.size)
        elif self.is_of_ranks:
            causes += self._of_ranks()
        else:
            causes.append(self._of_calls(self.by_rank[0]))
        return " and ".join(filter(None, causes))

    @property
    def is_of_ranks(self) -> bool:
        """Whether ranks have other factors of one pass."""
        return any(self._differ(max(of_pass), min(of_pass)) for of_pass in zip(*self.by_rank, strict=True))

    def _differ(self, first: float, second: float) -> bool:
        return abs(first - second) > SAME * self.most

    def _of_ranks(self) -> list[str]:
        """Where ranks have other gradients."""
        for rank, factors in enumerate(self.by_rank):
            pairs = list(zip(self.calls, factors, strict=True))
            lacks = {number for (owner, number), each in pairs if owner != rank and not self._differ(each, 0)}
            own = [each for (owner, _), each in pairs if owner == rank]
            has = {number for (owner, number), each in pairs if owner == rank and self._differ(each, 0)}
            if missed := sorted(lacks & has):
                if self.observed.hook:
                    _refuse(self.meant)
                if self.micro == 1 or len(missed) == self.micro:
                    return [self._own_rows_only(rank), *self._of_own(own)]
                return [f"no_sync was left on {_passes(missed, self.micro)}, so ranks differ"]
        if all(not self._differ(max(of_rank), min(of_rank)) for of_rank in self.by_rank):
            times = shown([of_rank[0] for of_rank in self.by_rank])
            return [f"clipped by each rank's own norm, so ranks differ (times {times})"]
        return ["ranks have different gradients"]

    def _own_rows_only(self, rank: int) -> str:
        if self.observed.is_by_grad:
            why = "torch.autograd.grad takes them, which DistributedDataParallel does not see"
        elif self.is_part:
            why = "they were added or made trainable after the wrapper, or an all_reduce leaves them out"
        else:
            why = (
                "no_sync on every backward pass, a missing all_reduce, the model was called without its "
                "wrapper, or these parameters were added or made trainable after it"
            )
        return f"ranks differ: rank {rank} has {OWN_ROWS}, they are not synchronized ({why})"

    def _of_own(self, factors: Sequence[float]) -> list[str]:
        """What is wrong besides with a rank's own gradients: alone they are those of its mean."""
        if self.weighed.cause:
            return [self.weighed.cause]
        return self._scalings(sum(factors) / len(factors) / self.size, 1)[:1]

    def _scalings(self, times: float, size: int) -> list[str]:
        """The usual errors over so many ranks, and this rank's passes, that scale by this."""
        known = scalings(size, "rank", self.micro).items()
        fitting = [cause for cause, value in known if abs(times / value - 1) < SAME]
        return [cause for cause in fitting if size > 1 or "1 rank" not in cause]

    def _of_calls(self, factors: Sequence[float]) -> str:
        """Where passes have other weights, on all ranks the same."""
        by_number = [
            [each for (_, of), each in zip(self.calls, factors, strict=True) if of == number]
            for number in range(self.micro)
        ]
        gone = [n for n, some in enumerate(by_number) if not any(self._differ(each, 0) for each in some)]
        if gone and set(gone) <= _taking_inputs(self.observed.window.calls):
            raise NotComparableError(
                f"{_passes(gone, self.micro)} are not in it, whose inputs get gradients: if these are meant, "
                "as for adversarial examples, take them by torch.autograd.grad"
            )
        if gone:
            return f"{_passes(gone, self.micro)} are not in it: zero_grad between them, or not synchronized"
        if self.case.misplaced:
            return ""
        if not self.weighed.cause and self.size == 1:  # ranks are synchronized by code of the loop, too
            _refuse(self.meant)
        *before, last = [sum(some) / len(some) for some in by_number]
        is_last_right = abs(last * self.kept - 1) < 5 * SAME
        if self.case.clip is not None and is_last_right and all(each < 0.99 * last for each in before):
            return "clipped before all micro-batches were in it"
        if self.weighed.cause:
            return self.weighed.cause
        if are_alike(self.weighed.of_losses, 1e-3):  # so the loss is right
            of = "micro-batch" if self.micro > 1 else "rank"
            changed = f"the gradients of each {of} were changed before they were added"
            return f"{changed}: clipped? (times {shown(factors)})"
        of = "micro-batches" if self.micro > 1 else "ranks"
        return f"{of} have other weights than in the loss of all rows ({shown(factors)} instead of 1)"

    def _of_scale(self, times: float) -> str:
        """Where everything has one factor."""
        size, micro = self.size, self.micro
        if abs(times - 1) < SAME:
            _refuse(self.meant)
            return "they are right but for digits that were lost: by a communication hook, or a cast?"
        if self.case.misplaced:
            return ""
        if self.kept < 1 - FITS and abs(times * self.kept - 1) < SAME:
            return f"it is not clipped to {self.case.clip} when the optimizer steps"
        fitting = self._scalings(times, size)
        if self.is_part and not fitting:
            _refuse(self.meant)
            return f"it is {times:.4g} times as large as it should be: a hook or the loop scales it"
        divisor = micro / times if times else math.inf
        is_whole = 1.5 < divisor < MOST_DIVISOR and abs(divisor - round(divisor)) < SAME * divisor
        if self.observed.passes > micro and abs(times * micro / self.observed.passes - 1) < SAME:
            fitting.append(f"backward was called {self.observed.passes} times for {plural(micro, 'loss')}")
        if not fitting:
            _refuse(self.meant)
        if is_whole and round(divisor) not in (micro, micro * micro) and self.case.clip is None:
            fitting.append(f"{plural(micro, 'micro-batch')} divided by {round(divisor)}")
        if self.case.is_partial and times < 1 and self.observed.passes == 1:
            raise NotComparableError(
                f"they are {times:.4g} times as large as they should be, and another optimizer, which "
                "holds the rest of the model, may step at other times: watch one optimizer's loop at a time"
            )
        cause = " or ".join(fitting) or self._of_any_scale(times)
        if size > 1 and abs(times * size - 1) < SAME:
            cause += " (an all_reduce without a backward?)"
        if not (self.weighed.is_whole or self.is_part):
            raise NotComparableError(UNSTATED.format(cause=cause, times=times))
        those = "these gradients are" if self.is_part else "all gradients are"
        return f"{cause}: {those} {times:.4g} times as large as they should be"

    def _of_any_scale(self, times: float) -> str:
        """Where the factor is no number of ranks or micro-batches.

        Raises NotComparableError where that may be meant.
        """
        if self.observed.scale != 1 and abs(times / self.observed.scale - 1) < SAME:
            return "they are still scaled: step through GradScaler.step, or unscale them"
        clip, measured = self.case.clip, [*self.case.sides.moments.values()]
        size, alone = (
            math.sqrt(math.fsum(some))
            for some in zip(*((each.found, each.of) for each in measured), strict=True)
        )
        alone *= self.kept
        if isinstance(clip, int | float) and alone < clip and abs(size / clip - 1) < SAME:
            return f"the loop clips it to {size:.4g}, and {alone:.4g} is its right norm: is the loss divided?"
        if clip is not None and self.observed.is_scaled and times < 1:
            return "it was clipped to another norm, or while it was still scaled (call scaler.unscale_ first)"
        if clip is not None:
            return f"it is not clipped to {clip} when the optimizer steps"
        _refuse(self.meant)
        raise NotComparableError(
            f"all gradients are {times:.4g} times as large as those of the loss that is watched: watch the "
            "loss with its coefficient, or state clip_norm= if the loop scales them"
        )


def _taking_inputs(calls: Sequence[Call]) -> set[int]:
    """The passes, from 0, in which every call has inputs that get gradients."""
    by_pass: dict[int, list[bool]] = {}
    for call in calls:
        by_pass.setdefault(call.backward, []).append(call.takes_inputs)
    return {place for place, number in enumerate(sorted(by_pass)) if all(by_pass[number])}


def _passes(numbers: Sequence[int], micro: int) -> str:
    """``the first of 4 backward passes``"""
    count = len(numbers)
    some = f" {count}" if count > 1 else ""
    if list(numbers) == list(range(count)):
        return f"the first{some} of {micro} backward passes"
    if list(numbers) == list(range(micro - count, micro)):
        return f"the last{some} of {micro} backward passes"
    return f"{', '.join(str(number + 1) for number in numbers)} of {micro} backward passes"


def _scaled_shards(case: Case) -> str:
    """Whether each rank has scaled its shard by a factor of its own."""
    sides, kept = case.sides, case.kept
    sharded = [each for name, each in sides.of_own.items() if sides.shards.is_sharded(name)]
    of_ranks = case.ranks.all_gather(sum(sharded, Moments()))
    known = [each for each in of_ranks if each.of and each.found]
    factors = [each.factor / kept for each in known]
    if are_alike(factors, SAME) or any(each.left**2 > FITS * each.found for each in known):
        return ""
    times = shown(factors)
    return f"clipped by each rank's own norm: each has scaled its shard (times {times})"


def _is_finite(tensors: Tensors) -> bool:
    return all(bool(each.isfinite().all()) for each in tensors.values())
