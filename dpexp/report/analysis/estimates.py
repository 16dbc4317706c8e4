"""Estimate: a mean or a difference over runs, with its standard error and degrees of freedom.

::

    a mean of runs, or of differences of two cells in each round    Student's t
    two cells that ran apart                                        Welch's statistic

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


@dataclass(frozen=True)
class Estimate:
    """A mean or difference, its standard error, and its degrees of freedom."""

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
