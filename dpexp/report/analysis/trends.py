"""Trends: whether the steps of one run get slower or faster, at once or gradually.

A step depends on those before it, and tests for independent samples take that for a trend. So a run is cut
into blocks of consecutive steps, each of which counts once, by its median (batch means; Law and Kelton,
2000), and the correlation that blocks still have lowers the number of samples (Serinaldi and Kilsby, 2016).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpexp.report.analysis import intervals
from dpexp.report.analysis.intervals import Interval

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

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
    import numpy as np

    values = np.array(blocks(times))
    count, length = len(values), -(-len(times) // MOST_BLOCKS)
    peak = _pettitt(values)
    if count < 2 * FEWEST or _pettitt_p(peak, count, 0.0) > LEVEL:
        return None
    steps = {at: _step(values, at) for at in range(FEWEST, count - FEWEST + 1)}
    at = min(steps, key=lambda at: float(np.abs(values - steps[at]).sum()))
    step = steps[at]
    p_value = _pettitt_p(peak, count, _correlation(values - step))
    found = _drift(values, float(np.abs(values - step).sum()))
    found = found or Trend(float(step[0]), float(step[-1]), at * length, p_value)
    return found if found.p_value <= LEVEL else None


def _pettitt(values: Array) -> float:
    """The statistic K: at one place, so many more pairs across it are in one order than in the other."""
    import numpy as np

    order = np.sign(values[np.newaxis, :] - values[:, np.newaxis])
    return float(max(abs(order[:at, at:].sum()) for at in range(1, len(values))))


def _step(values: Array, at: int) -> Array:
    """The median of the values before ``at`` in place of each of them, and likewise after it."""
    import numpy as np

    return np.repeat([np.median(values[:at]), np.median(values[at:])], (at, len(values) - at))


def _pettitt_p(peak: float, count: int, correlation: float) -> float:
    fewer = (1 - correlation) / (1 + correlation)
    return min(1.0, 2 * math.exp(-6 * peak**2 * fewer / (count**3 + count**2)))


def _drift(values: Array, misfit: float) -> Trend | None:
    """The line through the values, if it fits better than the step, whose sum of misfits is given."""
    import numpy as np

    places = np.arange(len(values))
    later, earlier = np.tril_indices(len(values), -1)
    rises = values[later] - values[earlier]
    slope = np.median(rises / (later - earlier))
    line = np.median(values) + slope * (places - np.median(places))
    if np.abs(values - line).sum() >= misfit or line[0] <= 0:
        return None
    correlation = _correlation(values - line)
    fewer = (1 - correlation) / (1 + correlation)
    z = abs(np.sign(rises).sum()) / math.sqrt(_kendall_variance(values) / fewer)
    return Trend(float(line[0]), float(line[-1]), None, math.erfc(z / math.sqrt(2)))


def _kendall_variance(values: Array) -> float:
    """The variance of Kendall's statistic, rises less falls over all pairs, of values without a trend."""
    import numpy as np

    _, equal = np.unique(values, return_counts=True)
    counts = np.concatenate([[len(values)], equal])
    terms = counts * (counts - 1) * (2 * counts + 5) / 18
    return float(terms[0] - terms[1:].sum())


def _correlation(rest: Array) -> float:
    """The correlation of neighbours, at least 0; outliers count as much as three usual deviations."""
    import numpy as np

    limit = 3 * float(np.median(np.abs(rest)))
    kept = np.clip(rest, -limit, limit)
    if len(kept) < 4 or not kept[:-1].std() or not kept[1:].std():
        return 0.0
    return float(np.clip(np.corrcoef(kept[:-1], kept[1:])[0, 1], 0.0, 0.99))
