"""Explain: why gradients are not those of a single device, in words.

What the optimizer got is written as a sum of what each call of each rank should add to it, and of what the
step before has left, by least squares. Of a right loop every factor is 1; the factors of a wrong one say what
it does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from dpexp.config.errors import NotComparableError
from dpexp.config.words import plural
from dpexp.verification.compare import whole_error
from dpexp.verification.diagnosis.fit import Fit, fit, multiple
from dpexp.verification.diagnosis.patterns import scalings
from dpexp.watch.ranks import LoopRanks

SAMPLE = 4096
"""So many numbers of each parameter are read at most."""
FITS = 2e-3
"""A sum that is so far from the gradients, beside their size, is what they are."""
SAME = 0.01
"""Factors that differ by so much are different."""
MOST_DIVISOR = 1000

Tensors = Mapping[str, torch.Tensor]


@dataclass
class Case:
    """What the optimizer got (``found``) of the parameters it ``held``, and what is ``right``.

    ``columns`` are what each call of this rank should add, before clipping; ``total`` is their sum over all
    ranks. ``counted`` are the ranks whose calls count; ``residue`` is what the steps before have left. Both
    columns and residue are ``sampled``.

    ``rule`` is what the loss averages over, and ``are_equal`` says that the loop counts every call alike,
    where a single device does not; ``is_weighed_right``: at the loss it counts every call as one does.
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
    is_scaled: bool = False
    rule: str = ""
    are_equal: bool = False
    is_weighed_right: bool = False
    names: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.names = [name for name in self.total if name in self.held]


def explain(case: Case) -> str:
    """The cause in words; every rank must call this. NotComparableError: a step was skipped."""
    ranks = case.ranks
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
    clipped = multiple({name: case.right[name] for name in case.names if name in case.right}, case.total)
    kept = (clipped.factors[0] if clipped is not None else 0.0) or 1.0

    def fitted(names: list[str]) -> list[Fit]:
        sides = [{name: side[name] for name in names if name in side} for side in (found, *columns, residue)]
        return ranks.all_gather(fit(sides[0], sides[1:]))

    fits = fitted(case.names)
    if all(fit.apart < FITS for fit in fits):
        return _Words(case, fits, calls, kept).cause()
    if scaled := _scaled_shards(case):
        return scaled
    wrong = [name for name in case.names if _error(case, name) > 10 * case.limit]
    wrong = next(filter(None, ranks.all_gather(wrong)), [])
    if not wrong:
        return "only some ranks have it"
    of_last = fitted([wrong[-1]])
    some = f"{len(wrong)} of {len(case.names)} parameters are wrong, '{wrong[-1]}' last"
    if all(fit.apart < FITS for fit in of_last):
        return f"{some}: {_Words(case, of_last, calls, kept, is_part=True).cause()}"
    return (
        f"{some}: it is not a sum of what the calls should add: a part of the loss does not come from the "
        "model's outputs (a penalty on weights), a hook changes it, or the layout computes another backward"
    )


def _error(case: Case, name: str) -> float:
    """How far a gradient is from the right one, relative to that; a missing one is zero."""
    right = case.right.get(name)
    return 0.0 if right is None else whole_error(case.found.get(name, torch.zeros_like(right)), right)


class _Words:
    """The cause by the factors of all ranks' calls; ``kept`` is the part that the stated clipping leaves."""

    def __init__(
        self,
        case: Case,
        fits: Sequence[Fit],
        calls: Sequence[tuple[int, int]],
        kept: float,
        is_part: bool = False,
    ) -> None:
        self.case, self.fits, self.calls, self.kept, self.is_part = case, fits, calls, kept, is_part
        self.size = len(set(case.counted))
        self.micro = max((number for _, number in calls), default=0) + 1
        self.by_rank = [[factor / kept for factor in fit.factors[:-1]] for fit in fits]
        self.all = [factor for of_rank in self.by_rank for factor in of_rank]
        self.most = max(map(abs, self.all), default=0.0)

    def cause(self) -> str:
        """One sentence."""
        if any(abs(fit.factors[-1]) > SAME for fit in self.fits):
            return "the gradients of the step before are in it: zero_grad is missing, or comes too late"
        if not any(bool(each.any()) for each in self.case.found.values()):
            synchronized = ", or never synchronized" if self.size > 1 else ""
            return f"it is zero when the optimizer steps: zero_grad between backward and step{synchronized}?"
        if max(self.all) - min(self.all) < 5 * FITS * self.most:
            return self._scaled_alike(sum(self.all) / len(self.all))
        if any(
            self._differ(a, b)
            for of_rank in self.by_rank
            for a, b in zip(of_rank, self.by_rank[0], strict=True)
        ):
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
            times = ", ".join(f"{of_rank[0]:.3g}" for of_rank in self.by_rank)
            return f"clipped by each rank's own norm, so ranks differ (times {times})"
        return "ranks have different gradients"

    def _of_calls(self, factors: Sequence[float]) -> str:
        """Where calls have other weights, on all ranks the same."""
        by_number: dict[int, list[float]] = {}
        for (_, number), each in zip(self.calls, factors, strict=True):
            by_number.setdefault(number, []).append(each)
        gone = [
            number for number, some in by_number.items() if not any(self._differ(each, 0) for each in some)
        ]
        if gone:
            return f"{_passes(gone, self.micro)} are not in it: zero_grad between them, or not synchronized"
        means = [sum(some) / len(some) for some in by_number.values()]
        is_last_right = abs(means[-1] * self.kept - 1) < 5 * SAME
        if (
            self.case.clip is not None
            and is_last_right
            and all(each < 0.99 * means[-1] for each in means[:-1])
        ):
            return "clipped before all micro-batches were in it"
        if self.case.is_weighed_right:
            times = ", ".join(f"{each:.3g}" for each in factors)
            of = "micro-batch" if self.micro > 1 else "rank"
            return f"the gradients of each {of} were changed before they were added: clipped? (times {times})"
        return mean_of_means(factors, self.size, self.case.rule, self.case.are_equal)

    def _scaled_alike(self, times: float) -> str:
        """Where everything has one factor."""
        size, micro, clip = self.size, self.micro, self.case.clip
        if abs(times - 1) < SAME:
            return "they are right but for digits that were lost: by a communication hook, or a cast?"
        if self.kept < 1 - FITS and abs(times * self.kept - 1) < SAME:
            return f"it is not clipped to {clip} when the optimizer steps"
        causes = scalings(size, "rank", micro)
        fitting = [cause for cause, value in causes.items() if abs(times / value - 1) < SAME]
        if self.is_part and not fitting:
            return f"it is {times:.4g} times as large as it should be: a hook or the loop scales it"
        cause = " or ".join(fitting[: 2 if micro == size else 1]) or self._scaled_otherwise(times)
        if size > 1 and abs(times * size - 1) < SAME:
            cause += " (an all_reduce without a backward?)"
        those = "these gradients are" if self.is_part else "all gradients are"
        factor = f"{those} {times:.4g} times as large as they should be"
        return f"{cause}: {factor}" if cause else factor

    def _scaled_otherwise(self, times: float) -> str:
        norm = math.hypot(*(float(each.double().norm()) for each in self.case.found.values()))
        divisor = self.micro / times if times else math.inf
        is_whole = 1.5 < divisor < MOST_DIVISOR and abs(divisor - round(divisor)) < SAME * divisor
        if self.case.rule == "sum" and times < 1:
            return "the loss is a sum, which the loop divides: let the loss that is watched divide it"
        if self.case.clip is None and is_whole and times > 1:
            return f"{plural(self.micro, 'micro-batch')} divided by {round(divisor)}"
        if self.case.clip is None and is_whole:
            counted = plural(self.micro, "micro-batch")
            or_clips = f"or the loop clips (its norm is {norm:.4g}): state clip_norm"
            return f"{counted} divided by {round(divisor)}, {or_clips}"
        alone = math.hypot(*(float(each.double().norm()) for each in self.case.right.values()))
        if (
            isinstance(self.case.clip, int | float)
            and alone < self.case.clip
            and abs(norm / self.case.clip - 1) < SAME
        ):
            return f"the loop clips it to {norm:.4g}, and {alone:.4g} is its right norm: is the loss divided?"
        if self.case.clip is not None and self.case.is_scaled and times < 1:
            return "it was clipped to another norm, or while it was still scaled (call scaler.unscale_ first)"
        if self.case.clip is None and times < 1:
            return f"its norm is {norm:.4g}: if the loop clips, state clip_norm"
        return ""


def mean_of_means(factors: Sequence[float], ranks: int, rule: str, are_equal: bool) -> str:
    """What calls are that have other weights than in the loss of all rows."""
    of = "micro-batches" if ranks < len(factors) or ranks == 1 else "ranks"
    times = ", ".join(f"{each:.3g}" for each in factors)
    what = rule.partition(" ")[0]
    if are_equal and what in ("rows", "labels", "weights"):
        return f"{of} of unequal {what} are averaged as if equal (weights {times} instead of 1)"
    return f"{of} have other weights than in the loss of all rows ({times} instead of 1)"


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
    both = [name for name in case.names if name in case.found and name in case.right]
    owners = {
        name: _owners(case.held[name], case.ranks.rank) for name in both if _is_sharded(case.held[name])
    }

    def shard(tensors: Tensors, rank: int) -> Tensors:
        return {name: tensors[name][owner == rank] for name, owner in owners.items()}

    of_ranks = [multiple(shard(case.found, rank), shard(case.right, rank)) for rank in range(case.ranks.size)]
    known = [each for each in of_ranks if each is not None]
    if len(known) < 2 or any(each.apart**2 > FITS or not each.size for each in known):
        return ""
    factors = ", ".join(f"{each.factors[0]:.3g}" for each in known)
    return f"clipped by each rank's own norm: each has scaled its shard (times {factors})"


def _is_sharded(parameter: nn.Parameter) -> bool:
    return hasattr(parameter, "placements")


def _owners(parameter: Any, rank: int) -> torch.Tensor:
    """The rank that has each number of a DTensor."""
    shape = {"shape": parameter.shape, "stride": parameter.stride(), "run_check": False}
    marked = torch.full_like(parameter.to_local(), float(rank))
    owner: torch.Tensor = DTensor.from_local(
        marked, parameter.device_mesh, parameter.placements, **shape
    ).full_tensor()
    return owner


def sampled(gradients: Tensors) -> dict[str, torch.Tensor]:
    """Some numbers of each, as vectors in float64 on the host."""
    flat = {name: each.detach().cpu().flatten().double() for name, each in gradients.items()}
    return {name: each[:: max(1, len(each) // SAMPLE)] for name, each in flat.items()}


def _is_finite(tensors: Tensors) -> bool:
    return all(bool(each.isfinite().all()) for each in tensors.values())
