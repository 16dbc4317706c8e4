"""Noise as text: why a run, or its phases, cannot be judged."""

from dpexp.config.ranges import plural
from dpexp.record.noise import Noise
from dpexp.report import units


def noise_text(found: Noise) -> str:
    """The reason with its figures: between which bounds the median lies, and what outliers hold."""
    low, high = units.ms(found.low), units.ms(found.high)
    bounds = f"the median of {plural(found.n, 'step')} lies between {low} and {high}"
    return f"{bounds}, {_share(found, 'them')}" if found.are_interrupted else bounds


def held(found: Noise) -> str:
    """Which part of the time outliers hold: ``3 of 75 steps hold 62% of the time``."""
    return _share(found, plural(found.n, "step"))


def _share(found: Noise, steps: str) -> str:
    return f"{found.outliers} of {steps} hold {units.percent(found.share)} of the time"
