"""Change: whether the steps of a run take longer, or shorter, from some step on.

A step depends on those before it, and a test for independent samples takes that for a change. So a run is cut
into blocks of consecutive steps, each of which counts once, by its median (batch means; Law and Kelton,
2000). The correlation that blocks still have lowers the number of samples (Serinaldi and Kilsby, 2016).
"""

import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations

from dpexp.record.noise import SLOWER

FEWEST_STEPS, MOST_BLOCKS, AT_ENDS = 48, 120, 3
"""A change is looked for in so many steps or more, but not in so many blocks at either end."""
LEVEL = 0.01
"""A change is reported where one as clear would be seen in at most this share of steady runs."""


@dataclass(frozen=True)
class Change:
    """Steps take ``before`` ms up to the step ``at``, and ``after`` ms from there on (medians)."""

    at: int
    before: float
    after: float

    @property
    def ratio(self) -> float:
        return self.after / self.before if self.before > 0 else math.inf


def change(times: Sequence[float]) -> Change | None:
    """The clearest change of the run by Pettitt's test (1979), if it is large enough to matter.

    The test compares ranks, so that outliers do not decide. A gradual change is found at its middle.
    """
    if len(times) < FEWEST_STEPS:
        return None
    length = -(-len(times) // MOST_BLOCKS)
    values = [statistics.median(times[start : start + length]) for start in range(0, len(times), length)]
    count, ranked = len(values), sorted(values)
    higher = (count - bisect_right(ranked, value) - bisect_left(ranked, value) for value in values)
    peak = max(map(abs, accumulate(higher)))
    steps = {at: _step(values, at) for at in range(AT_ENDS, count - AT_ENDS + 1)}
    rests = {at: [v - fit for v, fit in zip(values, step, strict=True)] for at, step in steps.items()}
    at = min(rests, key=lambda at: _size(rests[at]))
    found = Change(at * length, steps[at][0], steps[at][-1])
    rest = min(rests[at], _rest_of_line(values), key=_size)
    p_value = 2 * math.exp(-6 * peak**2 * _independent(rest) / (count**3 + count**2))
    return None if p_value > LEVEL or 1 / SLOWER < found.ratio < SLOWER else found


def _step(values: Sequence[float], at: int) -> list[float]:
    """The median of the values before ``at`` in place of each of them, and likewise after it."""
    return [statistics.median(values[:at])] * at + [statistics.median(values[at:])] * (len(values) - at)


def _rest_of_line(values: Sequence[float]) -> list[float]:
    """What the line of Theil and Sen leaves of the values."""
    pairs = combinations(enumerate(values), 2)
    slope = statistics.median((later - earlier) / (b - a) for (a, earlier), (b, later) in pairs)
    level = statistics.median(value - slope * place for place, value in enumerate(values))
    return [value - slope * place - level for place, value in enumerate(values)]


def _size(rest: Sequence[float]) -> float:
    return sum(map(abs, rest))


def _independent(rest: Sequence[float]) -> float:
    """The share of values that count where neighbours correlate; outliers are cut to three deviations."""
    limit = 3 * statistics.median(map(abs, rest))
    kept = [max(-limit, min(limit, each)) for each in rest]
    if len(set(kept[1:-1])) < 2:
        return 1.0
    correlation = max(0.0, min(0.99, statistics.correlation(kept[:-1], kept[1:])))
    return (1 - correlation) / (1 + correlation)
