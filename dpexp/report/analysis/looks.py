"""Looks: intervals of a sweep that may end after each of its rounds.

Whoever looks after every round finds a difference in the end, so each look spends a part of the error.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from dpexp.report.analysis import estimates
from dpexp.report.analysis.intervals import CONFIDENCE, Interval

PATHS = 200_000
"""Simulated sweeps from which the confidence of each look is taken."""


@functools.cache
def look_confidences(first: int, last: int) -> dict[int, float]:
    """{rounds: confidence of the interval looked at after them}, for looks after each of these rounds.

    Together the looks find a difference where there is none in 5% of sweeps. That error is spent in
    proportion to the rounds (Lan and DeMets, 1983), on the joint distribution of the t statistics of growing
    samples, which does not depend on the spread of the runs and is simulated here, always with one seed, for
    two cells in balanced rounds.
    """
    import numpy as np
    from scipy import special

    runs = np.random.default_rng(0).standard_normal((PATHS, last))
    apart = np.resize([1.0, -1.0, -1.0, 1.0], last)  # AB BA BA AB
    found, spent, undecided = {}, 0.0, np.ones(PATHS, dtype=bool)
    for count in range(first, last + 1):
        share = (1 - CONFIDENCE) * count / last
        look = estimates.of_rounds(runs[undecided, :count], apart[:count])
        p_values = 2 * special.stdtr(look.freedom, -np.abs(look.middle) / look.error)
        level = math.floor(1e4 * np.sort(p_values)[int((share - spent) * PATHS)]) / 1e4
        found[count], spent = 1 - level, share
        undecided[undecided] = p_values >= level
    return found


def over_looks(looks: Sequence[Interval]) -> Interval:
    """The last look with what all looks have in common; the last look itself where they have nothing."""
    low, high = max(look.low for look in looks), min(look.high for look in looks)
    last = looks[-1]
    return Interval(last.value, low, high, last.least_seen, last.why) if low <= high else last
