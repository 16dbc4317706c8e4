"""Interval: a figure of several runs, and how certain it is. The unit is the run.

::

    run 1    steps -> median ┐
    run 2    steps -> median ├─ logarithms -> estimate ± t · standard error -> exp
    run 3    steps -> median ┘

The steps of one run share its process, its memory layout and the state of the machine: however many they are,
they do not show how far the next run will lie. So a run counts once, by its median, and one run has no
interval. ``estimates`` says how runs of the same round of a sweep, and other runs, are compared; ``power``
what difference they could have seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpexp.record.figures.step_times import typical
from dpexp.report import units
from dpexp.report.analysis import estimates
from dpexp.report.analysis.estimates import Estimate
from dpexp.report.analysis.power import least_found

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

RunFigures = Mapping[Any, float]
"""{run: its figure}; runs of the same round of a sweep have the same key."""
CONFIDENCE = 0.95
ONE_RUN = "from one run each"
"""Why there is no interval."""
_MOST = 700.0
"""The largest logarithm of an end."""


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95% confidence interval; with one run the interval is everything."""

    value: float
    low: float = -math.inf
    high: float = math.inf
    least_seen: float = math.inf
    """The least factor between equal and different that further comparisons of this kind would find."""

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    @property
    def is_known(self) -> bool:
        """Whether there were enough runs of each cell."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def text(self, show: Callable[[float], str]) -> str:
        """``0.98x (95% interval 0.97x to 1.00x)``, or ``0.98x (from one run each: no interval)``."""
        if not self.is_known:
            return f"{show(self.value)} ({ONE_RUN}: no interval)"
        return f"{show(self.value)} (95% interval {show(self.low)} to {show(self.high)})"

    @property
    def seen_text(self) -> str:
        """``4.1% would show``, ``3.20x would show``, ``100x would not show``; empty where it is not known."""
        if not math.isfinite(self.least_seen):
            return ""
        if self.least_seen < 2:
            return f"{units.percent(self.least_seen - 1)} would show"
        return (
            f"{units.ratio(self.least_seen)} would show" if self.least_seen <= 100 else "100x would not show"
        )


def of_runs(runs: RunFigures) -> Interval:
    """The figure of one cell with its interval."""
    value = typical(runs.values())
    if len(runs) < 2 or not value:
        return Interval(value)
    return _exponential(value, estimates.mean(_logs(runs.values())))


def ratio_interval(first: RunFigures, second: RunFigures) -> Interval:
    """How many times the second cell's figure the first cell's is. Runs that share a key are paired.

    Where some runs share a key, only those count: the others would compare different rounds.
    """
    shared = [key for key in first if key in second]
    if shared:
        first, second = ({key: runs[key] for key in shared} for runs in (first, second))
    numerator, denominator = typical(first.values()), typical(second.values())
    if not numerator or not denominator:
        return Interval(numerator / denominator if denominator else math.inf)
    value = numerator / denominator
    if min(len(first), len(second)) < 2:
        return Interval(value)
    logs = _logs(first.values()), _logs(second.values())
    return _exponential(value, estimates.mean(logs[0] - logs[1]) if shared else estimates.difference(*logs))


def against_one(runs: Sequence[float], other: float) -> Interval:
    """How many times the figure of one other run that of these runs is, as if it were a further one of them.

    If it is, the interval contains 1 in 95% of cases (the prediction interval of Student's t).
    """
    value = typical(runs) / other if other > 0 else math.inf
    if len(runs) < 2 or not 0 < value < math.inf:
        return Interval(value)
    half = estimates.mean(_logs(runs)).half(CONFIDENCE)
    half = half * math.sqrt(len(runs) + 1)  # sqrt(1 + 1/n) instead of sqrt(1/n)
    return Interval(value, value * math.exp(-float(half)), value * math.exp(float(half)))


def _logs(values: Iterable[float]) -> Array:
    import numpy as np

    return np.asarray(np.log(list(values)))


def _exponential(value: float, estimate: Estimate) -> Interval:
    middle, half = float(estimate.middle), float(estimate.half(CONFIDENCE))
    seen = least_found(int(estimate.freedom), CONFIDENCE) * float(estimate.error)
    low, high, seen = (_power_of_e(each) for each in (middle - half, middle + half, seen))
    return Interval(value, low, high, seen)


def _power_of_e(exponent: float) -> float:
    """That of an end; two runs that differ much give one which no float has."""
    return math.exp(max(-_MOST, min(_MOST, exponent)))
