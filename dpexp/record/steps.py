"""Steps: the measured steps of one batch size, the statistics of samples, and whether these can be judged.

The last batch of an epoch is smaller, so that the steps of a run mix two batch sizes. The step time and the
rate are those of the most frequent size. docs/comparing.md says what a step is, and when it cannot be judged.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FEWEST = 4
"""Fewer times have no spread that one could judge."""
CERTAIN = 0.2
"""The farthest that an end of the interval of a certain median lies from it, as a share of the median."""
OUTLIER = 2.0
"""An outlier takes at least so many times the median."""


@dataclass(frozen=True)
class Steps:
    """The measured steps of one batch size; times in ms."""

    rows: int
    times: tuple[float, ...]
    median: float
    iqr: float
    min: float
    max: float
    n: int

    @property
    def samples_per_s(self) -> float | None:
        """The rows of a batch over the median time of its step; None for a time of 0."""
        return 1000 * self.rows / self.median if self.median else None


def times_by_rows(rows: Iterable[int | None], times: Iterable[float | None]) -> dict[int, list[float]]:
    """{rows of the batch: times of its steps}; a step whose journal line is lost is left out."""
    found: defaultdict[int, list[float]] = defaultdict(list)
    for count, time in zip(rows, times, strict=False):
        if count is not None and time is not None:
            found[count].append(time)
    return dict(found)


def usual_steps(by_rows: Mapping[int, Sequence[float]]) -> Steps | None:
    """The steps of the most frequent batch size (the larger one of equals); None without steps."""
    if not by_rows:
        return None
    rows = max(by_rows, key=lambda rows: (len(by_rows[rows]), rows))
    return Steps(rows, tuple(by_rows[rows]), **spread(by_rows[rows]) or {})


def wall_rate(rows: Sequence[int | None], wall_ms: Sequence[float | None]) -> float | None:
    """The rows of all steps per second of their wall time; None if a step lacks it.

    Records of programs, and of versions that did not measure it, have none.
    """
    known = [ms for count, ms in zip(rows, wall_ms, strict=False) if count is not None and ms is not None]
    counts, total = present(rows), math.fsum(known)
    return 1000 * sum(counts) / total if total and len(known) == len(counts) else None


def present(values: Iterable[Any]) -> list[Any]:
    """The samples without those that were not measured."""
    return [value for value in values if value is not None]


def spread(samples: Sequence[float]) -> dict[str, Any] | None:
    """{median, iqr, min, max, n} of the samples, in their unit; None without any."""
    if not samples:
        return None
    low, middle, high = quartiles(samples)
    return {"median": middle, "iqr": high - low, "min": min(samples), "max": max(samples), "n": len(samples)}


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """The quartiles of one sample or more, between neighbours in proportion: of 1 to 5 these are 2, 3, 4."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, middle, high


def typical(figures: Iterable[float]) -> float:
    """The figure of several runs: the geometric mean of theirs; 0 if one of them is."""
    figures = list(figures)
    if min(figures) <= 0:
        return 0.0
    return figures[0] if len(figures) == 1 else math.exp(math.fsum(map(math.log, figures)) / len(figures))


@dataclass(frozen=True)
class Noise:
    """Why ``n`` equal steps cannot be judged: their median lies between ``low`` and ``high``, in ms."""

    low: float
    high: float
    n: int


def noise(times: Sequence[float]) -> Noise | None:
    """None where the median stands for the times (ms), or they lie close together.

    They do where the IQR is below the median, and outliers hold less than half of the time. An outlier is
    beyond Tukey's far-out fence (1977), three IQRs above the upper quartile.
    """
    if len(times) < FEWEST:
        return None
    first, median, third = quartiles(times)
    low, high = median_interval(times)
    is_certain = median - low <= CERTAIN * median >= high - median
    limit = max(third + 3 * (third - first), OUTLIER * median)
    is_interrupted = sum(time for time in times if time > limit) > sum(times) / 2
    is_spread = third - first > median or is_interrupted
    return Noise(low, high, len(times)) if is_spread and not is_certain else None


def median_interval(times: Sequence[float]) -> tuple[float, float]:
    """The 95% interval of the median, by order statistics; the range of at most ten times.

    The times may have any distribution: how many lie below their median is binomial, here by its normal
    approximation (Conover, Practical Nonparametric Statistics, section 3.2).
    """
    ordered, count = sorted(times), len(times)
    rank = max(1, int((count - 1.96 * math.sqrt(count)) / 2))
    return ordered[rank - 1], ordered[count - rank]
