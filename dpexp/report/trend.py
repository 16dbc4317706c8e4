"""Trends: whether the steps of one run get slower or faster, at once or gradually.

A step depends on those before it, and tests for independent samples take that for a trend. So a run is cut
into blocks of consecutive steps, each of which counts once, by its median (batch means; Law and Kelton,
2000), and the correlation that blocks still have lowers the number of samples (Serinaldi and Kilsby, 2016).
"""

import math
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations

from dpexp.report import intervals
from dpexp.report.intervals import Interval

MOST_BLOCKS = 120
FEWEST = 3
"""A change after fewer blocks, or before the last ones, is not a trend."""
LEVEL = 0.01
"""A trend is reported where one as clear would be seen in at most this share of steady runs."""


@dataclass(frozen=True)
class Trend:
    """Steps take ``before`` ms at first and ``after`` ms at last; ``at``: the step where that changes.

    For a gradual change ``at`` is None, and the times are those of the ends of the line.
    """

    before: float
    after: float
    at: int | None
    p_value: float

    @property
    def ratio(self) -> float:
        return self.after / self.before if self.before > 0 else math.inf


def blocks(times: Sequence[float], most: int = MOST_BLOCKS) -> list[float]:
    """The medians of at most so many blocks of consecutive times, all of one length but for the last."""
    length = -(-len(times) // most)
    return [statistics.median(times[start : start + length]) for start in range(0, len(times), length)]


def ratio_within_run(first: Sequence[float], second: Sequence[float], most: int = 8) -> Interval:
    """How many times the times of one pass are those of another, with an interval over blocks of steps."""
    one, other = (
        dict(enumerate(blocks(times, min(most, len(times) // 2 or 1)))) for times in (first, second)
    )
    return intervals.ratio_interval(one, {-1 - number: median for number, median in other.items()})


def trend(times: Sequence[float]) -> Trend | None:
    """The clearest trend of the run; None if there is none.

    Whether there is one is decided by Pettitt's test for a change-point (1979), by ranks, so that outliers do
    not decide. It is gradual, a drift, if the line of Theil and Sen fits better than the step; then the test
    of Mann and Kendall must confirm it.
    """
    values = blocks(times)
    count, length = len(values), -(-len(times) // MOST_BLOCKS)
    peak = _pettitt(values)
    if count < 2 * FEWEST or _pettitt_p(peak, count, 0.0) > LEVEL:
        return None
    steps = {at: _step(values, at) for at in range(FEWEST, count - FEWEST + 1)}
    at = min(steps, key=lambda at: _misfit(values, steps[at]))
    step = steps[at]
    p_value = _pettitt_p(peak, count, _correlation(_rest(values, step)))
    found = _drift(values, _misfit(values, step)) or Trend(step[0], step[-1], at * length, p_value)
    return found if found.p_value <= LEVEL else None


def _pettitt(values: Sequence[float]) -> int:
    """The statistic K: at one place, so many more pairs across it are in one order than in the other."""
    ranked, count = sorted(values), len(values)
    higher = [count - bisect_right(ranked, value) - bisect_left(ranked, value) for value in values]
    return max(map(abs, accumulate(higher)))


def _step(values: Sequence[float], at: int) -> list[float]:
    """The median of the values before ``at`` in place of each of them, and likewise after it."""
    before, after = values[:at], values[at:]
    return [statistics.median(before)] * len(before) + [statistics.median(after)] * len(after)


def _rest(values: Sequence[float], fitted: Sequence[float]) -> list[float]:
    return [value - each for value, each in zip(values, fitted, strict=True)]


def _misfit(values: Sequence[float], fitted: Sequence[float]) -> float:
    return sum(map(abs, _rest(values, fitted)))


def _pettitt_p(peak: int, count: int, correlation: float) -> float:
    fewer = (1 - correlation) / (1 + correlation)
    return min(1.0, 2 * math.exp(-6 * peak**2 * fewer / (count**3 + count**2)))


def _drift(values: Sequence[float], misfit: float) -> Trend | None:
    """The line through the values, if it fits better than the step, whose sum of misfits is given."""
    rises = [(later - earlier, b - a) for (a, earlier), (b, later) in combinations(enumerate(values), 2)]
    slope = statistics.median(rise / places for rise, places in rises)
    middle, level = (len(values) - 1) / 2, statistics.median(values)
    line = [level + slope * (place - middle) for place in range(len(values))]
    if _misfit(values, line) >= misfit or line[0] <= 0:
        return None
    correlation = _correlation(_rest(values, line))
    fewer = (1 - correlation) / (1 + correlation)
    more = sum((rise > 0) - (rise < 0) for rise, _ in rises)
    z = abs(more) / math.sqrt(_kendall_variance(values) / fewer)
    return Trend(line[0], line[-1], None, math.erfc(z / math.sqrt(2)))


def _kendall_variance(values: Sequence[float]) -> float:
    """The variance of Kendall's statistic, rises less falls over all pairs, of values without a trend."""
    every, *equal = (
        count * (count - 1) * (2 * count + 5) / 18 for count in (len(values), *Counter(values).values())
    )
    return every - sum(equal)


def _correlation(rest: Sequence[float]) -> float:
    """The correlation of neighbours, at least 0; outliers count as much as three usual deviations."""
    limit = 3 * statistics.median(map(abs, rest))
    kept = [max(-limit, min(limit, each)) for each in rest]
    one, other = _centred(kept[:-1]), _centred(kept[1:])
    squares = _product(one, one) * _product(other, other)
    if len(kept) < 4 or squares <= 0:
        return 0.0
    return max(0.0, min(0.99, _product(one, other) / math.sqrt(squares)))


def _centred(values: Sequence[float]) -> list[float]:
    mean = sum(values) / len(values)
    return [value - mean for value in values]


def _product(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(each * beside for each, beside in zip(one, other, strict=True))
