"""Ticks: where an axis has numbers, at multiples of 1, 2, 2.5 or 5 times a power of ten.

``timeline.js`` finds the ticks of a zoomed axis in the same way.
"""

import math
from itertools import count

ROUND = (5.0, 2.5, 2.0, 1.0)
_ROUNDING = 1e-9
"""A multiple that lies beyond an end by this share of its distance to the next one is still a tick."""


def ticks(low: float, high: float, least: int = 5) -> list[float]:
    """The multiples between two ends of the largest round number that has at least ``least`` there."""
    if not low < high < math.inf:
        return [low]
    power = math.floor(math.log10(high - low))
    sizes = (size * 10.0**exponent for exponent in count(power, -1) for size in ROUND)
    return next(found for size in sizes if len(found := _multiples(low, high, size)) >= least)


def log_ticks(low: float, high: float, most: int = 8) -> list[float]:
    """Powers of ten between two positive ends; below three of them 1, 2 and 5 times these, or multiples."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    step = math.ceil(len(powers) / most)
    for sizes, chosen in (((1.0,), powers[::step]), ((1.0, 2.0, 5.0), powers)):
        found = [size * 10.0**power for power in chosen for size in sizes]
        if len(inside := [tick for tick in found if low <= tick <= high]) >= 3:
            return inside
    return ticks(low, high, 3)


def _multiples(low: float, high: float, size: float) -> list[float]:
    first, last = math.ceil(low / size - _ROUNDING), math.floor(high / size + _ROUNDING)
    return [number * size for number in range(first, last + 1)]
