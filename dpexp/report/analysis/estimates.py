"""Estimate: a mean or a difference over runs, with its standard error and degrees of freedom.

::

    a mean of runs                  Student's t
    two cells that ran apart        Welch's statistic
    two cells of the same rounds    the mean difference of a round; from five rounds on its line over
                                    the time between the two runs of a round, at no time between them

A steady drift adds to the difference of a round in proportion to the time between its two runs. Where the
rounds are balanced the drift then adds nothing to the mean, but widens its interval; the line removes it from
both, for one degree of freedom, which fewer than five rounds do not have to spare. Rounds that are not
balanced always get a line.

The degrees of freedom of Welch's statistic are those of the smaller group, its lower bound (Mickey and Brown,
1966): with two or three runs Welch's own estimate of them finds too many differences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

LINE_FROM = 5
"""Balanced rounds get a line from this number on."""
BALANCED = 1.2
"""Rounds are balanced if Student's t of the times between their runs is at most this: that of reversed pairs
of rounds and one more is at most 1, so that a drift alone is never taken for a difference."""


@dataclass(frozen=True)
class Estimate:
    """A mean or difference, its standard error, and its degrees of freedom; the error may be infinite."""

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


def of_rounds(differences: Array, apart: Array) -> Estimate:
    """The difference of two cells from their differences in each round, of shape (…, rounds).

    ``apart`` is how much later than the other's the first one's run was, in any unit; 0 where it is unknown.
    """
    import numpy as np

    rounds, as_mean = differences.shape[-1], mean(differences)
    centred = apart - apart.mean(-1, keepdims=True)
    spread = np.square(centred).sum(-1)
    lean = rounds * (rounds - 1) * np.square(apart.mean(-1))
    is_mean = lean <= BALANCED**2 * spread if rounds < LINE_FROM else np.abs(apart).max(-1) == 0
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = (centred * differences).sum(-1) / spread
        rest = differences - as_mean.middle[..., None] - slope[..., None] * centred
        variance = np.square(rest).sum(-1) / (rounds - 2)
        error = np.sqrt(variance * (1 / rounds + np.square(apart.mean(-1)) / spread))
        error = np.where(np.isfinite(error), error, math.inf)
        at_once = np.where(spread > 0, as_mean.middle - slope * apart.mean(-1), as_mean.middle)
    return Estimate(
        np.where(is_mean, as_mean.middle, at_once),
        np.where(is_mean, as_mean.error, error),
        np.where(is_mean, rounds - 1, rounds - 2),
    )
