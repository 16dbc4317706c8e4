"""Explain: what is found of a loop, and why gradients are not those of a single device, in words.

What the optimizer got is written as a sum of what each call of each rank should add to it, and of what the
step before has left, by least squares. Of a right loop every factor is 1; the factors of a wrong one say what
it does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from dpexp.config.errors import NotComparableError, VerificationError
from dpexp.config.words import plural
from dpexp.verification.compare import Difference, whole_error
from dpexp.verification.diagnosis.patterns import Fit, fit, multiple, scalings
from dpexp.verification.result import row_of
from dpexp.watch.ranks import LoopRanks
from dpexp.watch.weights import Weighed, are_alike

SAMPLE = 4096
"""So many numbers of each parameter are read at most."""
FITS = 2e-3
"""A sum that is so far from the gradients, beside their size, is what they are."""
SAME = 0.01
"""Factors that differ by so much are different."""
MOST_DIVISOR = 1000

Tensors = Mapping[str, torch.Tensor]


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
    """Ends the comparison of a step with a finding."""

    def __init__(self, finding: LoopFinding) -> None:
        super().__init__(str(finding))
        self.finding = finding


@dataclass(frozen=True)
class Case:
    """What the optimizer got (``found``) of the parameters it ``held``, and what is ``right``.

    ``columns`` are what each call of this rank should add, before clipping; ``total`` is their sum over all
    ranks. ``counted`` are the ranks whose calls count; ``residue`` is what the steps before have left. Both
    columns and residue are ``sampled``. ``clip`` is the clipping as stated, ``limit`` what is rounding.
    """

    ranks: LoopRanks
    held: Mapping[str, nn.Parameter]
    found: Tensors
    right: Tensors
    total: Tensors
    columns: Sequence[Tensors]
    counted: Sequence[int]
    residue: Tensors
    clip: Any
    limit: float
    is_scaled: bool
    weighed: Weighed | None


def explain(case: Case) -> str:
    """The cause in words; every rank must call this. NotComparableError: a step was skipped."""
    ranks, names = case.ranks, [name for name in case.total if name in case.held]
    by_rank = ranks.all_gather(list(case.columns))
    calls = [(rank, number) for rank in sorted(set(case.counted)) for number in range(len(by_rank[rank]))]
    columns = [by_rank[rank][number] for rank, number in calls]
    found, residue = sampled(case.found), case.residue
    if not all(ranks.all_gather(_is_finite(found))):
        return "it is not finite where the optimizer steps"
    if not all(map(_is_finite, (*columns, residue))):
        raise NotComparableError(
            "what a call should add is not finite, and the gradients are: the loop skips or scales the step"
        )

    def fitted(names: list[str], *, is_part: bool = False) -> _Factors | None:
        sides = [{name: side[name] for name in names if name in side} for side in (found, *columns, residue)]
        fits = ranks.all_gather(fit(sides[0], sides[1:]))
        return _Factors(case, fits, calls, is_part) if all(fit.apart < FITS for fit in fits) else None

    if (of_all := fitted(names)) is not None:
        return of_all.cause()
    if scaled := _scaled_shards(case):
        return scaled
    wrong = [
        name
        for name in names
        if name in case.right
        and whole_error(case.found.get(name, torch.zeros_like(case.right[name])), case.right[name])
        > 10 * case.limit
    ]
    wrong = next(filter(None, ranks.all_gather(wrong)), [])
    if not wrong:
        return "only some ranks have it"
    some = f"{len(wrong)} of {len(names)} parameters are wrong, '{wrong[-1]}' last"
    if (of_last := fitted([wrong[-1]], is_part=True)) is not None:
        return f"{some}: {of_last.cause()}"
    return (
        f"{some}: it is not a sum of what the calls should add: a part of the loss does not come from the "
        "model's outputs (a penalty on weights), a hook changes it, or the layout computes another backward"
    )


class _Factors:
    """Those of the ``calls`` (rank, number) of all ranks, as each rank has them, without the stated clipping.

    ``kept`` is what that clipping leaves. ``is_part``: they are those of one parameter.
    """

    def __init__(
        self, case: Case, fits: Sequence[Fit], calls: Sequence[tuple[int, int]], is_part: bool
    ) -> None:
        self.case, self.calls, self.is_part = case, calls, is_part
        self.size = len(set(case.counted))
        self.micro = max((number for _, number in calls), default=0) + 1
        clipped = multiple(case.right, case.total)
        self.kept = (clipped.factors[0] if clipped is not None else 0.0) or 1.0
        self.by_rank = [[factor / self.kept for factor in fit.factors[:-1]] for fit in fits]
        self.of_residue = [fit.factors[-1] for fit in fits]
        self.most = max((abs(each) for of_rank in self.by_rank for each in of_rank), default=0.0)

    def cause(self) -> str:
        """One sentence."""
        if any(abs(each) > SAME for each in self.of_residue):
            return "the gradients of the step before are in it: zero_grad is missing, or comes too late"
        if not any(bool(each.any()) for each in self.case.found.values()):
            synchronized = ", or never synchronized" if self.size > 1 else ""
            return f"it is zero when the optimizer steps: zero_grad between backward and step{synchronized}?"
        everywhere = [each for of_rank in self.by_rank for each in of_rank]
        if max(everywhere) - min(everywhere) < 5 * FITS * self.most:
            return self._of_scale(sum(everywhere) / len(everywhere))
        if any(self._differ(max(of_call), min(of_call)) for of_call in zip(*self.by_rank, strict=True)):
            return self._of_ranks()
        return self._of_calls(self.by_rank[0])

    def _differ(self, first: float, second: float) -> bool:
        return abs(first - second) > SAME * self.most

    def _of_ranks(self) -> str:
        """Where ranks have other gradients."""
        for rank, factors in enumerate(self.by_rank):
            pairs = list(zip(self.calls, factors, strict=True))
            lacks = {number for (owner, number), each in pairs if owner != rank and not self._differ(each, 0)}
            has = {number for (owner, number), each in pairs if owner == rank and self._differ(each, 0)}
            if missed := sorted(lacks & has):
                if self.micro == 1 or len(missed) == self.micro:
                    return (
                        f"ranks differ: rank {rank} has the gradients of its own rows only, they are not "
                        "synchronized (no_sync on every backward pass, a missing all_reduce, or the model "
                        "was called without its wrapper)"
                    )
                return f"no_sync was left on {_passes(missed, self.micro)}, so ranks differ"
        if all(not self._differ(max(of_rank), min(of_rank)) for of_rank in self.by_rank):
            times = _times(of_rank[0] for of_rank in self.by_rank)
            return f"clipped by each rank's own norm, so ranks differ (times {times})"
        return "ranks have different gradients"

    def _of_calls(self, factors: Sequence[float]) -> str:
        """Where calls have other weights, on all ranks the same."""
        by_number = [
            [each for (_, of), each in zip(self.calls, factors, strict=True) if of == number]
            for number in range(self.micro)
        ]
        gone = [n for n, some in enumerate(by_number) if not any(self._differ(each, 0) for each in some)]
        if gone:
            return f"{_passes(gone, self.micro)} are not in it: zero_grad between them, or not synchronized"
        *before, last = [sum(some) / len(some) for some in by_number]
        is_last_right = abs(last * self.kept - 1) < 5 * SAME
        if self.case.clip is not None and is_last_right and all(each < 0.99 * last for each in before):
            return "clipped before all micro-batches were in it"
        if self.case.weighed is not None and are_alike(self.case.weighed.factors):  # so the loss is right
            of = "micro-batch" if self.micro > 1 else "rank"
            changed = f"the gradients of each {of} were changed before they were added"
            return f"{changed}: clipped? (times {_times(factors)})"
        return mean_of_means(factors, self.size, self.case.weighed)

    def _of_scale(self, times: float) -> str:
        """Where everything has one factor."""
        size, micro = self.size, self.micro
        if abs(times - 1) < SAME:
            return "they are right but for digits that were lost: by a communication hook, or a cast?"
        if self.kept < 1 - FITS and abs(times * self.kept - 1) < SAME:
            return f"it is not clipped to {self.case.clip} when the optimizer steps"
        causes = scalings(size, "rank", micro)
        fitting = [cause for cause, value in causes.items() if abs(times / value - 1) < SAME]
        if self.is_part and not fitting:
            return f"it is {times:.4g} times as large as it should be: a hook or the loop scales it"
        cause = " or ".join(fitting[: 2 if micro == size else 1]) or self._of_any_scale(times)
        if size > 1 and abs(times * size - 1) < SAME:
            cause += " (an all_reduce without a backward?)"
        those = "these gradients are" if self.is_part else "all gradients are"
        factor = f"{those} {times:.4g} times as large as they should be"
        return f"{cause}: {factor}" if cause else factor

    def _of_any_scale(self, times: float) -> str:
        """Where the factor is no number of ranks or micro-batches; empty where nothing is known."""
        clip, norm = self.case.clip, _norm(self.case.found)
        if self.case.weighed is not None and self.case.weighed.rule == "sum" and times < 1:
            return "the loss is a sum, which the loop divides: let the loss that is watched divide it"
        divisor = self.micro / times if times else math.inf
        is_whole = 1.5 < divisor < MOST_DIVISOR and abs(divisor - round(divisor)) < SAME * divisor
        if clip is None and is_whole:
            divided = f"{plural(self.micro, 'micro-batch')} divided by {round(divisor)}"
            clips = f", or the loop clips (its norm is {norm:.4g}): state clip_norm"
            return divided if times > 1 else divided + clips
        alone = _norm(self.case.right)
        if isinstance(clip, int | float) and alone < clip and abs(norm / clip - 1) < SAME:
            return f"the loop clips it to {norm:.4g}, and {alone:.4g} is its right norm: is the loss divided?"
        if clip is not None and self.case.is_scaled and times < 1:
            return "it was clipped to another norm, or while it was still scaled (call scaler.unscale_ first)"
        if clip is None and times < 1:
            return f"its norm is {norm:.4g}: if the loop clips, state clip_norm"
        return ""


def mean_of_means(factors: Sequence[float], ranks: int, weighed: Weighed | None) -> str:
    """What calls are that have other weights than in the loss of all rows."""
    of = "micro-batches" if ranks < len(factors) or ranks == 1 else "ranks"
    what = weighed.rule.partition(" ")[0] if weighed is not None and weighed.are_equal else ""
    if what in ("rows", "labels", "weights"):
        return f"{of} of unequal {what} are averaged as if equal (weights {_times(factors)} instead of 1)"
    return f"{of} have other weights than in the loss of all rows ({_times(factors)} instead of 1)"


def _times(factors: Iterable[float]) -> str:
    return ", ".join(f"{each:.3g}" for each in factors)


def _norm(tensors: Tensors) -> float:
    return math.hypot(*(float(each.double().norm()) for each in tensors.values()))


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
    sharded = [
        name
        for name, each in case.held.items()
        if hasattr(each, "placements") and name in case.found and name in case.right
    ]
    owners = {name: _owners(case.held[name], case.ranks.rank) for name in sharded}

    def shard(tensors: Tensors, rank: int) -> Tensors:
        return {name: tensors[name][owner == rank] for name, owner in owners.items()}

    of_ranks = [multiple(shard(case.found, rank), shard(case.right, rank)) for rank in range(case.ranks.size)]
    known = [each for each in of_ranks if each is not None]
    if len(known) < 2 or any(each.apart**2 > FITS or not each.size for each in known):
        return ""
    times = _times(each.factors[0] for each in known)
    return f"clipped by each rank's own norm: each has scaled its shard (times {times})"


def _owners(parameter: Any, rank: int) -> torch.Tensor:
    """The rank that has each number of a DTensor."""
    shape = {"shape": parameter.shape, "stride": parameter.stride(), "run_check": False}
    marked = torch.full_like(parameter.to_local(), float(rank))
    owner: torch.Tensor = DTensor.from_local(
        marked, parameter.device_mesh, parameter.placements, **shape
    ).full_tensor()
    return owner


def sampled(gradients: Tensors) -> dict[str, torch.Tensor]:
    """Some numbers of each, by name, as vectors in float64 on the host."""
    flat = {name: each.detach().cpu().flatten().double() for name, each in gradients.items()}
    return {name: each[:: max(1, len(each) // SAMPLE)] for name, each in flat.items()}


def _is_finite(tensors: Tensors) -> bool:
    return all(bool(each.isfinite().all()) for each in tensors.values())
