"""Power: what difference a comparison could have seen, from the spread that it measured.

A comparison that finds no difference says little unless it would have found one that matters. Its runs give
the spread with an error of their own, so that both are chance: the spread that was measured, from which the
figure is told, and that of a further comparison, which is to find the difference::

    P( c · s + z > t · s' ) = 80%       s, s': spreads as runs measure them, z: the mean of the further one
"""

from __future__ import annotations

import functools

POWER = 0.8
"""The share of further comparisons with as many runs that would find the difference."""
_QUANTILES = 200


@functools.cache
def least_found(freedom: int, confidence: float) -> float:
    """The least difference that ``POWER`` of further comparisons find, in standard errors as measured."""
    import numpy as np
    from scipy import special

    shares = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    spreads = np.sqrt(special.chdtri(freedom, 1 - shares) / freedom)
    limits = special.stdtrit(freedom, (1 + confidence) / 2) * spreads[:, None]

    def found(times: float) -> float:
        differences = times * spreads
        return float(np.mean(special.ndtr(differences - limits) + special.ndtr(-differences - limits)))

    low, high = 0.0, 1.0
    while found(high) < POWER:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if found(middle) < POWER else (low, middle)
    return high
