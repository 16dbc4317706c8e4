"""Rounding: what it explains of one of the run's steps, measured by single devices that take the same step.

run            found                     at most TWICE as far from float64 as the farthest single device
single device  expected, draw 0, 1, ...  in the run's type, each rounded otherwise
single device  exact                     in float64
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from dpexp.verification.limits.compare import HIDES, Limits, Noise, noise_of
from dpexp.verification.limits.norms import Tensors
from dpexp.verification.limits.parts import Parts, parts_of
from dpexp.verification.limits.rounding import MARGIN, largest, of_rounding
from dpexp.verification.steps.recorder import Step
from dpexp.verification.steps.step_parts import last_bits, parts_of_step

Kinds = Mapping[str, Mapping[str, Parts]]

TWICE, DRAWS = 2, 8
"""A run in a short type may be so many times as far from float64 as a single device in this type.

So narrow a limit is measured more often than others, until it explains what differs."""


@dataclass(frozen=True)
class Computed:
    """What a step has computed before its optimizer, and the buffers that it leaves."""

    step: Step
    buffers: Tensors

    def apart(self, wanted: Computed) -> Kinds:
        """How far this is from what is wanted, which says which buffers count."""
        shared = {name: self.buffers[name] for name in wanted.buffers if name in self.buffers}
        return parts_of_step(self.step, wanted.step) | {"buffers": parts_of(shared, wanted.buffers)}


@dataclass
class StepRounding:
    """Of the step ``number``: ``again(draw)`` is a single device that rounds otherwise, or as usual (None).

    ``in_float64()`` is one in float64; None where there is none, or the run's type is not shorter.
    """

    found: Computed
    expected: Computed
    again: Callable[[int | None], Computed]
    in_float64: Callable[[], Computed | None]
    limits: Limits
    number: int

    def __post_init__(self) -> None:
        self._singles = [self.expected]

    @cached_property
    def plain(self) -> Kinds:
        """How far the run is from the single device in its type."""
        return self.found.apart(self.expected)

    @cached_property
    def _exact(self) -> Computed | None:
        return self.in_float64()

    @cached_property
    def _without_draw(self) -> Noise:
        return noise_of(self.again(None).apart(self.expected), self.number, self.limits.tolerance)

    def measured(self, draw: int) -> tuple[Kinds, Noise]:
        """What differs beside what, and what rounding explains of it, after one more draw.

        A tensor that differs is judged beside float64, unless that is so far away that it hides errors.
        """
        self._singles.append(self.again(draw))
        exact = self._exact
        noise = self._noise(self.expected, TWICE if exact else MARGIN)
        if exact is None:
            return self.plain, noise
        kinds = dict[str, dict[str, Parts]]()
        beside, of_exact = self.found.apart(exact), self._noise(exact, TWICE)
        for kind, of_kind in self.plain.items():
            judged, kinds[kind] = self.limits.judge(kind, self.number, of_kind), dict(of_kind)
            for name in (name for name in of_kind if judged[name].ratio > 1 and name in beside[kind]):
                key, parts = (kind, self.number, name), beside[kind][name]
                if math.hypot(*of_exact[key]) <= HIDES * math.hypot(*parts.norms):
                    kinds[kind][name], noise[key] = parts, of_exact[key]
        return kinds, noise

    def _noise(self, beside: Computed, margin: float) -> dict[tuple[str, int, str], list[float]]:
        draws = [noise_of(each.apart(beside), self.number) for each in self._singles]
        bits = last_bits(self.expected.apart(beside), self.expected.step, self.number)
        return of_rounding(largest([*draws, bits], margin), self._without_draw)
