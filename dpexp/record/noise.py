"""Noise: whether the median of equal steps' times stands for them.

A few long interruptions do not move a median, and neither does a wide spread if there are enough steps. So a
run can be judged where its median is certain: the 95% interval of the median, by order statistics, lies
within 20% of it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from dpexp.record.steps import quartiles

FEWEST = 4
"""Fewer times have no spread that one could judge."""
CERTAIN = 0.2
"""The farthest that an end of the interval of a certain median lies from it, as a share of the median."""
LEAST_START = 32
"""Fewer times do not show that the first of them are slow."""
OUTLIER, SLOWER = 2.0, 1.2
"""An outlier takes at least so many times the median, and so a step of a slow start."""


@dataclass(frozen=True)
class Noise:
    """Times (ms) that are spread wide, or of which ``outliers`` hold most.

    ``share`` is that of the outliers in the sum of all times; ``low`` and ``high`` bound the median.
    """

    median: float
    low: float
    high: float
    iqr: float
    n: int
    outliers: int
    share: float

    @property
    def is_certain(self) -> bool:
        """Whether the median stands for the times all the same."""
        return self.median - self.low <= CERTAIN * self.median >= self.high - self.median

    @property
    def are_interrupted(self) -> bool:
        """Whether outliers hold more than half of the time."""
        return self.share > 0.5


def noise(times: Sequence[float]) -> Noise | None:
    """None where the IQR is below the median and outliers hold less than half of the time."""
    if len(times) < FEWEST:
        return None
    first, median, third = quartiles(times)
    limit, total = outlier_limit(times), sum(times)
    outliers = [time for time in times if time > limit]
    share = sum(outliers) / total if total else 0.0
    low, high = median_interval(times)
    found = Noise(median, low, high, third - first, len(times), len(outliers), share)
    return found if found.iqr > median or found.are_interrupted else None


def median_interval(times: Sequence[float]) -> tuple[float, float]:
    """The 95% interval of the median, by order statistics; the range of at most ten times.

    The times may have any distribution: how many lie below their median is binomial, here by its normal
    approximation (Conover, Practical Nonparametric Statistics, section 3.2).
    """
    ordered, count = sorted(times), len(times)
    rank = max(1, int((count - 1.96 * math.sqrt(count)) / 2))
    return ordered[rank - 1], ordered[count - rank]


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
