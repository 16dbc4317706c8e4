"""Gradients: those of the loop beside those of a single device, as the numbers that this rank owns.

One parameter after the other is read. What is kept of each is measured: ``Moments`` for scales and norms, and
``Parts`` for the verdict.

The norm of the right gradients is computed in float64: that of 23 million numbers in float32 is off by 1e-3,
and a sum over shards is nearer to the truth than one over the full tensor. Where clipping is active the
loop's own factor is taken, one for all, if it is so near to the right one that only the norm's rounding
lies between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from dpexp.verification.compare import Parts, spectrum
from dpexp.verification.diagnosis.patterns import Moments, moments, scalings
from dpexp.watch import clipping
from dpexp.watch.calls import full
from dpexp.watch.clipping import Clip, Made
from dpexp.watch.expected import Observed, OneByOne, Step, Tensors
from dpexp.watch.ranks import LoopRanks
from dpexp.watch.shards import Shards, own, sampled

NORM = 3e-3
"""The norm of many numbers in float32 is off by up to so much."""


def of_loop(held: Mapping[str, nn.Parameter], scale: torch.Tensor | None, is_dense: bool = True) -> OneByOne:
    """The gradients of these parameters, divided by what a fused optimizer itself divides them by."""

    def gradient(name: str) -> torch.Tensor:
        grad = held[name].grad
        assert grad is not None
        found = own(grad, held[name])
        found = found.to_dense() if found.is_sparse and is_dense else found
        return found if scale is None else found / scale

    return OneByOne([name for name, each in held.items() if each.grad is not None], gradient)


@dataclass(frozen=True)
class Sides:
    """The gradients of parameters that are ``held``: those ``found``, and the ``sums`` of a single device.

    ``moments`` compare all of a parameter, ``of_own`` what this rank owns of it.
    """

    held: Mapping[str, nn.Parameter]
    found: Tensors
    sums: Tensors
    shards: Shards
    moments: Mapping[str, Moments]
    of_own: Mapping[str, Moments]

    @classmethod
    def of(cls, step: Step, held: Mapping[str, nn.Parameter], found: Tensors) -> Sides:
        """Every rank must call this."""
        sums = {name: each for name, each in step.sums.items() if name in held}
        of_own = {name: moments(found.get(name), sums.get(name)) for name in {**sums, **found}}
        return cls(held, found, sums, step.shards, step.shards.summed(of_own), of_own)

    @property
    def ranks(self) -> LoopRanks:
        """All of them."""
        return self.shards.ranks

    def measured(self, made: Mapping[str, Made]) -> dict[str, Moments]:
        """The loop's beside what is made of the right ones; every rank must call this."""
        limited = {
            name: moments(self.found.get(name), each(self.sums[name]))
            for name, each in made.items()
            if math.isfinite(each.limit)
        }
        scaled = {name: self.moments[name].scaled(each.times) for name, each in made.items()}
        return scaled | (self.shards.summed(limited) if limited else {})

    def norm(self, made: Mapping[str, Made], kind: float) -> float:
        """Of what is made of the right ones, over the numbers of all ranks; every rank must call this."""
        if kind == 2:
            return math.sqrt(math.fsum(each.of for each in self.measured(made).values()))
        of_own = {
            name: (float(torch.linalg.vector_norm(each(self.sums[name]).double(), kind)),)
            if self.sums[name].numel()
            else ()
            for name, each in made.items()
        }
        norms = [each for some in self.shards.summed(of_own).values() for each in some]
        return float(torch.linalg.vector_norm(torch.tensor(norms, dtype=torch.float64), kind))

    def parts(self, found: Tensors, wanted: Tensors) -> dict[str, Parts]:
        """How far apart gradients are; every rank must call this."""
        spectra = {name: spectrum(found.get(name), wanted.get(name)) for name in {**wanted, **found}}
        return {name: each.parts for name, each in self.shards.summed(spectra).items()}


@dataclass(frozen=True)
class Right:
    """What the gradients of a single device become before the optimizer steps: ``made`` by name, each alone,
    unless the user's ``function`` clips all together.

    ``limit`` is that of clipping, or the function; ``is_active``: it changes the gradients.
    """

    made: Mapping[str, Made]
    is_active: bool
    limit: Any
    function: Callable[[Any], Any] | None

    @classmethod
    def of(
        cls,
        step: Step,
        observed: Observed,
        sides: Sides,
        own: Mapping[str, nn.Parameter],
        stated: float | Callable[[Any], Any] | None,
    ) -> Right:
        """``own`` are the model's parameters, ``stated`` is the user's ``clip_norm``; all ranks call this."""
        made = dict.fromkeys(sides.sums, Made(scale_of(step, observed, sides)))
        clips = clipping.effective(observed.clips, observed.passes, own, observed.written)
        limits = sides.ranks.all_gather([each.limit for each in clips])
        if len(limits[0]) == len(clips):  # a rank that clips to another limit is wrong
            clips = [replace(each, limit=limit) for each, limit in zip(clips, limits[0], strict=True)]
        if clips:
            return cls(*_clipped(clips, observed.passes, made, sides, own), clips[-1].limit, None)
        if stated is None:
            return cls(made, False, None, None)
        if not callable(stated):
            times = clipping.factor(stated, sides.norm(made, 2))
            return cls({name: each.scaled(times) for name, each in made.items()}, times < 1, stated, None)
        return cls(made, True, stated, stated)

    def kept(self, sides: Sides) -> float:
        """How many times the sums these gradients are; 1 of nothing. Every rank must call this."""
        some = self.gradients(sides, sides.sums).items()
        of_own = {name: moments(each, sides.sums[name]) for name, each in some}
        times = sum(sides.shards.summed(of_own).values(), Moments()).factor
        return sides.ranks.all_gather(times if times and math.isfinite(times) else 1.0)[0]

    def gradients(self, sides: Sides, sums: Tensors) -> Tensors:
        """What the optimizer should get where these are the sums; every rank must call this."""
        names = [name for name in sums if name in sides.found or sides.moments[name].of]
        some = OneByOne(names, lambda name: self.made[name](sums[name]))
        if self.function is None:
            return some
        full_ones = {name: sides.shards.gathered(name, each, sides.held[name]) for name, each in some.items()}
        clipped = clipping.stated(self.function, full_ones)
        return {name: sides.shards.cut(name, each) for name, each in clipped.items()}


def scale_of(step: Step, observed: Observed, sides: Sides) -> float:
    """The scale of the loop's gradients that is taken as right: one for all, that of the first rank."""
    return sides.ranks.all_gather(_own_scale(step, observed, _unclipped(observed, sides)))[0]


def _unclipped(observed: Observed, sides: Sides) -> float:
    """How many times the sums the loop's gradients are, before these were clipped."""
    if (before := observed.unclipped) is None:
        both = (each for name, each in sides.moments.items() if name in sides.found)
        return sum(both, Moments()).factor
    samples = {name: sampled(each, sides.held[name]) for name, each in sides.sums.items() if name in before}
    of_own = {name: moments(before[name], each) for name, each in samples.items()}
    return sum(sides.shards.summed(of_own).values(), Moments()).factor


def _own_scale(step: Step, observed: Observed, times: float) -> float:
    weighed = step.weighed
    if not math.isfinite(times) or not times:
        return 1.0
    near = min(weighed.times, key=lambda each: abs(times / each - 1))
    if not weighed.is_free:
        return near
    if weighed.terms > 1 and observed.passes > 1:  # terms have coefficients, and passes are still divided
        errors = scalings(len(set(step.counted)), "rank", observed.passes).values()
        if any(abs(times / (near * each) - 1) < 1e-3 for near in weighed.times for each in errors):
            return near
    return times


def _clipped(
    clips: Sequence[Clip],
    passes: int,
    scaled: Mapping[str, Made],
    sides: Sides,
    own: Mapping[str, nn.Parameter],
) -> tuple[dict[str, Made], bool]:
    """What is made of the right gradients by name, ``scaled`` before, and whether clipping is active.

    ``own`` are the model's parameters. Where others are clipped together with those held, as of other models
    or of another optimizer, the norm is the loop's. Every rank must call this.
    """
    result, is_active = dict(scaled), False
    ids = {id(each) for name, each in own.items() if name in result or not each.requires_grad}
    for clip in clips:
        some = {
            name: result[name] for name, each in own.items() if id(each) in clip.parameters and name in result
        }
        if clip.kind == "value":
            is_active |= sides.norm(some, math.inf) > clip.limit
            result |= {name: Made(each.times, min(each.limit, clip.limit)) for name, each in some.items()}
            continue
        if clip.parameters <= ids or clip.passes < passes:
            size = sides.norm(some, clip.norm_type)
        else:
            size = sides.ranks.all_gather(float(full(clip.norm)))[0]
        times = clipping.factor(clip.limit, size)
        fitted = sum(sides.measured(some).values(), Moments()).factor
        of_loop = times if math.isnan(fitted) else fitted
        is_active |= times < 1
        times = min(1.0, of_loop) if abs(of_loop / times - 1) < NORM else times
        if times < 1:
            result |= {name: each.scaled(times) for name, each in some.items()}
    return result, is_active
