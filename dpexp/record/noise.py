"""Noise: whether the times of equal steps are close enough together for one of them to stand for all."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from dpexp.record.steps import quartiles

FEWEST = 4
"""Fewer times have no spread that one could judge."""
LEAST_START = 32
"""Fewer times do not show that the first of them are slow."""
OUTLIER, SLOWER = 2.0, 1.2
"""An outlier takes at least so many times the median, and so a step of a slow start."""


@dataclass(frozen=True)
class Noise:
    """Why a median of times (ms) says little: they are spread wide, or ``outliers`` of them hold the time.

    ``share`` is that of the outliers in the sum of all times.
    """

    median: float
    iqr: float
    n: int
    outliers: int
    share: float

    @property
    def is_wide(self) -> bool:
        """Whether the middle half of the times lies in a range that is longer than their median."""
        return self.iqr > self.median


def noise(times: Sequence[float]) -> Noise | None:
    """None of times that can be judged: their IQR is below their median, and outliers hold less than half."""
    if len(times) < FEWEST:
        return None
    low, median, high = quartiles(times)
    limit, total = outlier_limit(times), sum(times)
    outliers = [time for time in times if time > limit]
    found = Noise(median, high - low, len(times), len(outliers), sum(outliers) / total if total else 0.0)
    return found if found.is_wide or found.share > 0.5 else None


def slow_start(times: Sequence[float]) -> int:
    """How many times before the first usual one are long; 0 if too few follow."""
    if len(times) < LEAST_START:
        return 0
    later = times[len(times) // 4 :]
    limit = max(far_out(later), SLOWER * statistics.median(later))
    return next((number for number, time in enumerate(times) if time <= limit), 0)


def outlier_limit(times: Sequence[float]) -> float:
    """Times above this are outliers: far out, and a multiple of the median."""
    return max(far_out(times), OUTLIER * statistics.median(times))


def far_out(times: Sequence[float]) -> float:
    """Tukey's far-out fence (1977), three IQRs above the upper quartile."""
    low, _, high = quartiles(times)
    return high + 3 * (high - low)
