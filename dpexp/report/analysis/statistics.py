"""Step times of like with like, and intervals by bootstrap.

An epoch ends in a smaller batch, so a run's step times mix two sizes; a median is taken over the
steps of the most frequent size only.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpexp.record import Record, spread

if TYPE_CHECKING:
    import numpy as np

RESAMPLES = 1000
MOST_SAMPLES, MOST_RUNS = 400, 40
"""Of more samples, or runs, so many, evenly spaced, are resampled: the interval is wider then."""


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
    found: dict[int, list[float]] = {rows: [] for rows in record.steps["samples"]}
    for rows, time in zip(record.steps["samples"], record.steps["time_ms"], strict=False):
        found[rows].append(time)
    return found


def usual_steps(record: Record) -> Steps | None:
    """The steps of the most frequent batch size (the larger one of equals); None without steps."""
    rows, times = usual_times(record)
    figures = spread(times)
    return None if figures is None else Steps(rows, tuple(times), **figures)


def usual_times(record: Record) -> tuple[int, list[float]]:
    """(rows, step times in ms) of the most frequent batch size; no times where there are no steps."""
    by_rows = steps_by_rows(record)
    rows = max(by_rows, key=lambda size: (len(by_rows[size]), size), default=0)
    return rows, by_rows.get(rows, [])


@dataclass(frozen=True)
class Interval:
    """An estimate and the interval that holds it with 95% confidence."""

    value: float
    low: float
    high: float

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high


Samples = Sequence[float]
Estimate = Callable[[Any, Any], Any]
"""Of two medians, numbers or arrays of them."""


def bootstrap(estimate: Estimate, first: Samples, second: Samples, *, seed: int = 0) -> Interval:
    """The percentile bootstrap (Efron, 1979) of an estimate from two samples' medians, seeded, 95%."""
    return bootstrap_runs(estimate, [first], [second], seed=seed)


def bootstrap_runs(
    estimate: Estimate, first: Sequence[Samples], second: Sequence[Samples], *, seed: int = 0
) -> Interval:
    """The same for samples of several runs each: runs are resampled, then the samples within each.

    So the interval holds the spread between runs too, where there is more than one (Davison and
    Hinkley, 1997, section 3.8).
    """
    import numpy as np

    source = np.random.default_rng(seed)
    values = estimate(_medians(first, source), _medians(second, source))
    low, high = np.quantile(values, (0.025, 0.975))
    return Interval(float(estimate(_median(first), _median(second))), float(low), float(high))


def _median(runs: Sequence[Samples]) -> float:
    return statistics.median(sample for run in runs for sample in run)


def _medians(runs: Sequence[Samples], source: np.random.Generator) -> np.ndarray[Any, Any]:
    """The medians of all resamples."""
    import numpy as np

    kept = _thinned(runs)
    lengths = np.array([len(run) for run in kept])
    padded = np.full((len(kept), lengths.max()), np.nan)
    for number, run in enumerate(kept):
        padded[number, : len(run)] = run
    drawn = source.integers(len(kept), size=(RESAMPLES, len(kept)))
    most = lengths[drawn][..., np.newaxis]
    places = (source.random((RESAMPLES, *padded.shape)) * most).astype(int)
    values = np.take_along_axis(padded[drawn], places, axis=2)
    values[np.broadcast_to(np.arange(padded.shape[1]) >= most, values.shape)] = np.nan
    return np.asarray(np.nanmedian(values.reshape(RESAMPLES, -1), axis=1))


def _thinned(runs: Sequence[Samples]) -> list[Samples]:
    kept = runs[:: -(-len(runs) // MOST_RUNS)]
    most = MOST_SAMPLES // len(kept)
    return [run[:: -(-len(run) // most)] for run in kept]


def ratio(first: Any, second: Any) -> Any:
    """How many times the first median is the second."""
    return first / second


def most_frequent(values: Sequence[int]) -> int:
    """The value that occurs most often, the largest of equals."""
    counts = Counter(values)
    return max(counts, key=lambda value: (counts[value], value))
