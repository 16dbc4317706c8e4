"""Interval: a figure of several runs, and how certain it is. The unit is the run.

::

    run 1    steps -> median ┐
    run 2    steps -> median ├─ logarithms -> estimate ± t · standard error -> exp
    run 3    steps -> median ┘

The steps of one run share its process, its memory layout and the state of the machine: however many they are,
they do not show how far the next run will lie. So a run counts once, by its median, and one run has no
interval. Runs of the same round of a sweep are compared by ``mean`` of their differences, other runs by
``difference``; ``least_found`` says what difference they could have seen.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpexp.record.steps import typical
from dpexp.report import units

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Estimate:
    """A mean or difference, its standard error, and its degrees of freedom."""

    middle: Array
    error: Array
    freedom: Array

    def half(self, confidence: float) -> Array:
        """Half the width of its interval."""
        import numpy as np
        from scipy import special

        t = special.stdtrit(np.maximum(self.freedom, 1), (1 + confidence) / 2)
        return np.asarray(t * self.error)


def mean(values: Array) -> Estimate:
    """The mean of values of shape (…, runs)."""
    import numpy as np

    runs = values.shape[-1]
    return Estimate(values.mean(-1), values.std(-1, ddof=1) / math.sqrt(runs), np.asarray(runs - 1))


def difference(first: Array, second: Array) -> Estimate:
    """The difference of the means of values of shapes (…, runs)."""
    import numpy as np

    variances = [values.var(-1, ddof=1) / values.shape[-1] for values in (first, second)]
    freedom = min(first.shape[-1], second.shape[-1]) - 1
    return Estimate(first.mean(-1) - second.mean(-1), np.sqrt(sum(variances)), np.asarray(freedom))


POWER = 0.8
"""The share of further comparisons with as many runs that would find the difference."""
_QUANTILES = 200


@functools.cache
def least_found(freedom: int, confidence: float) -> float:
    """The least difference that ``POWER`` of further comparisons find, in standard errors as measured."""
    import numpy as np
    from scipy import special

    shares = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    spreads = np.sqrt(special.chdtri(freedom, 1 - shares) / freedom)
    limits = special.stdtrit(freedom, (1 + confidence) / 2) * spreads[:, None]

    def found(times: float) -> float:
        differences = times * spreads
        return float(np.mean(special.ndtr(differences - limits) + special.ndtr(-differences - limits)))

    low, high = 0.0, 1.0
    while found(high) < POWER:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if found(middle) < POWER else (low, middle)
    return high


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
    return _exponential(value, mean(_logs(runs.values())))


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
    return _exponential(value, mean(logs[0] - logs[1]) if shared else difference(*logs))


def against_one(runs: Sequence[float], other: float) -> Interval:
    """How many times the figure of one other run that of these runs is, as if it were a further one of them.

    If it is, the interval contains 1 in 95% of cases (the prediction interval of Student's t).
    """
    value = typical(runs) / other if other > 0 else math.inf
    if len(runs) < 2 or not 0 < value < math.inf:
        return Interval(value)
    half = mean(_logs(runs)).half(CONFIDENCE)
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
