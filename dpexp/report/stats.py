"""Step times of like with like, and intervals by bootstrap.

An epoch ends in a smaller batch, so a run's step times mix two sizes; a median is taken over the
steps of the most frequent size only.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpexp.record import Record, spread

RESAMPLES = 1000
MOST_SAMPLES = 400
"""Of more samples, so many, evenly spaced, are resampled: the interval is wider then, never too narrow."""


@dataclass(frozen=True)
class Steps:
    """The measured steps of one batch size, times in ms."""

    rows: int
    times: tuple[float, ...]
    median: float
    iqr: float
    min: float
    max: float
    n: int


def steps_by_rows(record: Record) -> dict[int, list[float]]:
    """{rows of the batch: step times in ms}, in the order of the steps."""
    found: dict[int, list[float]] = {}
    for rows, time in zip(record.steps["samples"], record.steps["time_ms"], strict=False):
        found.setdefault(rows, []).append(time)
    return found


def usual_steps(record: Record) -> Steps | None:
    """The steps of the most frequent batch size (the larger one of equals); None without steps."""
    by_rows = steps_by_rows(record)
    if not by_rows:
        return None
    rows = max(by_rows, key=lambda size: (len(by_rows[size]), size))
    figures = spread(by_rows[rows])
    assert figures is not None
    return Steps(rows, tuple(by_rows[rows]), **figures)


@dataclass(frozen=True)
class Interval:
    """An estimate and the interval that holds it with 95% confidence."""

    value: float
    low: float
    high: float

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high


def bootstrap(
    estimate: Callable[[Sequence[float], Sequence[float]], float],
    first: Sequence[float],
    second: Sequence[float],
    *,
    seed: int = 0,
) -> Interval:
    """The percentile bootstrap (Efron, 1979) of an estimate from two samples, seeded, 95%."""
    whole = estimate(first, second)
    first, second = _thinned(first), _thinned(second)
    source = random.Random(seed)
    values = sorted(
        estimate(source.choices(first, k=len(first)), source.choices(second, k=len(second)))
        for _ in range(RESAMPLES)
    )
    cut = int(0.025 * RESAMPLES)
    return Interval(whole, values[cut], values[-1 - cut])


def _thinned(samples: Sequence[float]) -> Sequence[float]:
    step = -(-len(samples) // MOST_SAMPLES)
    return samples if step < 2 else samples[::step]


def ratio_of_medians(first: Sequence[float], second: Sequence[float]) -> float:
    """How many times the first sample's median is the second's."""
    below = statistics.median(second)
    return statistics.median(first) / below if below else float("inf")


def most_frequent(values: Sequence[int]) -> int:
    """The value that occurs most often, the largest of equals."""
    counts = Counter(values)
    return max(counts, key=lambda value: (counts[value], value))
