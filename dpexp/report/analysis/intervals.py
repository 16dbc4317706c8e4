"""Interval: a figure of several runs, and how certain it is. The unit is the run.

::

    run 1    steps -> median ┐
    run 2    steps -> median ├─ logarithms -> mean ± t · standard error -> exp
    run 3    steps -> median ┘

The steps of one run share its process, its memory layout and the state of the machine: however many they are,
they do not show how far the next run will lie. So a run counts once, by its median, and one run has no
interval.

Runs of the same round of a sweep are paired: Student's t on the logarithm of their ratio. Other runs are
compared by Welch's statistic with the degrees of freedom of the smaller group, its lower bound (Mickey and
Brown, 1966): with two or three runs Welch's own estimate of them finds too many differences.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpexp.record.figures.step_times import typical

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

RunFigures = Mapping[Any, float]
"""{run: its figure}; runs of the same round of a sweep have the same key."""
CONFIDENCE = 0.95
PATHS = 200_000
"""Simulated sweeps from which the confidence of each look is taken."""


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95% confidence interval; with one run the interval is everything."""

    value: float
    low: float = -math.inf
    high: float = math.inf

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    @property
    def is_known(self) -> bool:
        """Whether there were at least two runs of each cell."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def text(self, show: Callable[[float], str]) -> str:
        """``0.98x (95% interval 0.97x to 1.00x)``, or ``0.98x (from one run each: no interval)``."""
        if not self.is_known:
            return f"{show(self.value)} (from one run each: no interval)"
        return f"{show(self.value)} (95% interval {show(self.low)} to {show(self.high)})"


def of_runs(runs: RunFigures, confidence: float = CONFIDENCE) -> Interval:
    """The figure of one cell with its interval."""
    value = typical(runs.values())
    if len(runs) < 2 or not value:
        return Interval(value)
    return _exponential(value, *mean_interval(_logs(runs.values()), confidence))


def ratio_interval(first: RunFigures, second: RunFigures, confidence: float = CONFIDENCE) -> Interval:
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
    if shared:
        return _exponential(value, *mean_interval(logs[0] - logs[1], confidence))
    return _exponential(value, *difference_interval(*logs, confidence))


def against_one(runs: Sequence[float], other: float) -> Interval:
    """How many times the figure of one other run that of these runs is, as if it were a further one of them.

    If it is, the interval contains 1 in 95% of cases (the prediction interval of Student's t).
    """
    value = typical(runs) / other if other > 0 else math.inf
    if len(runs) < 2 or not 0 < value < math.inf:
        return Interval(value)
    _, half = mean_interval(_logs(runs))
    half = half * math.sqrt(len(runs) + 1)  # sqrt(1 + 1/n) instead of sqrt(1/n)
    return Interval(value, value * math.exp(-float(half)), value * math.exp(float(half)))


def mean_interval(values: Array, confidence: float = CONFIDENCE) -> tuple[Array, Array]:
    """(mean, half width of its interval) of values of shape (…, runs)."""
    import numpy as np
    from scipy import special

    runs = values.shape[-1]
    t = special.stdtrit(runs - 1, (1 + confidence) / 2)
    return values.mean(-1), np.asarray(t * values.std(-1, ddof=1) / math.sqrt(runs))


def difference_interval(first: Array, second: Array, confidence: float = CONFIDENCE) -> tuple[Array, Array]:
    """(difference of the means, half width of its interval) of values of shapes (…, runs)."""
    import numpy as np
    from scipy import special

    t = special.stdtrit(min(first.shape[-1], second.shape[-1]) - 1, (1 + confidence) / 2)
    variances = [values.var(-1, ddof=1) / values.shape[-1] for values in (first, second)]
    return np.asarray(first.mean(-1) - second.mean(-1)), np.asarray(t * np.sqrt(sum(variances)))


def _logs(values: Iterable[float]) -> Array:
    import numpy as np

    return np.asarray(np.log(list(values)))


def _exponential(value: float, middle: Array, half: Array) -> Interval:
    return Interval(value, math.exp(float(middle - half)), math.exp(float(middle + half)))


@functools.cache
def look_confidences(first: int, last: int) -> dict[int, float]:
    """{rounds: confidence of the interval looked at after them}, for looks after each of these rounds.

    Together the looks find a difference where there is none in 5% of sweeps. That error is spent in
    proportion to the rounds (Lan and DeMets, 1983), on the joint distribution of the t statistics of growing
    samples, which does not depend on the spread of the runs and is simulated here, always with one seed.
    """
    import numpy as np
    from scipy import special

    runs = np.random.default_rng(0).standard_normal((PATHS, last))
    counts = np.arange(1, last + 1)
    means = runs.cumsum(1) / counts
    variances = (np.square(runs).cumsum(1) - counts * np.square(means)) / np.maximum(counts - 1, 1)
    found, spent, undecided = {}, 0.0, np.ones(PATHS, dtype=bool)
    for count in range(first, last + 1):
        share = (1 - CONFIDENCE) * count / last
        t = np.abs(means[:, count - 1]) * np.sqrt(count / variances[:, count - 1])
        p_values = 2 * special.stdtr(count - 1, -t[undecided])
        level = math.floor(1e4 * np.sort(p_values)[int((share - spent) * PATHS)]) / 1e4
        found[count], spent = 1 - level, share
        undecided[undecided] = p_values >= level
    return found


def over_looks(looks: Sequence[Interval]) -> Interval:
    """The last look's value with what all looks have in common; the last look where they have nothing."""
    low, high = max(look.low for look in looks), min(look.high for look in looks)
    return Interval(looks[-1].value, low, high) if low <= high else looks[-1]
