"""Interval: a figure of several runs, and how certain it is. The unit is the run.

::

    run 1    steps -> median ┐
    run 2    steps -> median ├─ logarithms -> mean ± t · standard error -> exp
    run 3    steps -> median ┘

The steps of one run share its process, its memory layout and the state of the machine: however many they are,
they do not show how far the next run will lie. So a run counts once, by its median, and one run has no
interval. Runs of the same round of a sweep are compared by the ``mean`` of their differences, other runs by
the ``difference`` of their means.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from dpexp.record.figures import Figure
from dpexp.record.steps import present, spread, typical
from dpexp.record.view import RecordView
from dpexp.report import units

if TYPE_CHECKING:
    import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"
Key = TypeVar("Key", bound=Hashable)
Medians = Mapping[Key, float]
"""{run: its figure}; runs of the same round of a sweep have the same key."""
CONFIDENCE = 0.95
ONE_RUN = "from one run each"
"""Why there is no interval."""


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
        """Whether there were enough runs of each cell."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def text(self, unit: str) -> str:
        """``0.98x (95% interval 0.97x to 1.00x)``, or ``0.98x (from one run each: no interval)``."""
        value, low, high = (units.text(number, unit) for number in (self.value, self.low, self.high))
        certainty = f"95% interval {low} to {high}" if self.is_known else f"{ONE_RUN}: no interval"
        return f"{value} ({certainty})"


def samples_of(figure: Figure, run: RecordView) -> list[float]:
    """The samples of a figure, or the one number that it is; empty where it is not known."""
    return list(figure.of(run)) if figure.is_sampled else present([figure.number(run)])


def medians(figure: Figure, runs: Mapping[Key, RecordView]) -> dict[Key, float]:
    """{run: the median of its samples}, of the runs that have any."""
    samples = {key: samples_of(figure, run) for key, run in runs.items()}
    return {key: statistics.median(of_run) for key, of_run in samples.items() if of_run}


def pooled(figure: Figure, runs: Mapping[Key, RecordView]) -> dict[str, Any]:
    """{median, iqr, min, max, n} of the samples of all runs; empty without any."""
    return spread([sample for run in runs.values() for sample in samples_of(figure, run)]) or {}


def interval(
    figure: Figure, runs: Mapping[Key, RecordView], against: Mapping[Key, RecordView] | None = None
) -> Interval | None:
    """A figure of a cell, or its ratio to another cell's, with its interval; None where it is not known."""
    numbers = medians(figure, runs)
    if against is None:
        return of_runs(numbers) if numbers else None
    others = medians(figure, against)
    return ratio_interval(numbers, others) if numbers and others else None


def of_runs(runs: Medians[Key]) -> Interval:
    """The figure of one cell with its interval."""
    value = typical(runs.values())
    return _interval(value, *mean(_logs(runs.values()))) if len(runs) > 1 and value else Interval(value)


def ratio_interval(first: Medians[Key], second: Medians[Key]) -> Interval:
    """How many times the second cell's figure the first cell's is. Runs that share a key are paired.

    Where some runs share a key, only those count: the others would compare different rounds.
    """
    shared = [key for key in first if key in second]
    if shared:
        first, second = ({key: runs[key] for key in shared} for runs in (first, second))
    numerator, denominator = typical(first.values()), typical(second.values())
    value = numerator / denominator if denominator else math.inf
    if min(len(first), len(second)) < 2 or not 0 < value < math.inf:
        return Interval(value)
    logs = _logs(first.values()), _logs(second.values())
    return _interval(value, *(mean(logs[0] - logs[1]) if shared else difference(*logs)))


def mean(values: Array) -> tuple[Array, Array]:
    """The mean of values of shape (…, runs), and half the width of its interval, by Student's t."""
    runs = values.shape[-1]
    return values.mean(-1), _student(runs - 1) * (values.std(-1, ddof=1) / math.sqrt(runs))


def difference(first: Array, second: Array) -> tuple[Array, Array]:
    """The difference of the means of values of shapes (…, runs), and half the width of its interval.

    By Welch's statistic. The degrees of freedom are those of the smaller group, the lower bound of Welch's
    (Mickey and Brown, 1966): with two or three runs his own estimate of them finds too many differences.
    """
    variances = [values.var(-1, ddof=1) / values.shape[-1] for values in (first, second)]
    freedom = min(first.shape[-1], second.shape[-1]) - 1
    return first.mean(-1) - second.mean(-1), _student(freedom) * sum(variances) ** 0.5


def _student(freedom: int) -> Any:
    from scipy import special  # takes longer than the rest of a command's help

    return special.stdtrit(freedom, (1 + CONFIDENCE) / 2)


def _logs(values: Iterable[float]) -> Array:
    import numpy as np  # likewise

    return np.asarray(np.log(list(values)))


def _interval(value: float, middle: Array, half: Array) -> Interval:
    # Two runs that differ much have an end that no float has.
    return Interval(
        value, *(math.exp(max(-700, min(700, float(end)))) for end in (middle - half, middle + half))
    )
