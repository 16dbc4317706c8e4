"""Step times of equal batches, and bootstrap intervals of what is estimated from them.

The last batch of an epoch is smaller, so the step times of a run mix two batch sizes. Medians are taken
over the steps of the most frequent size only. ``scipy.stats.bootstrap`` resamples one level only, runs or
steps, and gives other figures than those in the committed experiments: the bootstrap stays here.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpexp.record import Record, spread

if TYPE_CHECKING:
    import numpy as np

RunSamples = Sequence[float]
RESAMPLES = 1000
MOST_SAMPLES, MOST_RUNS = 400, 40
"""Of more samples, or runs, an evenly spaced subset of this size is resampled; the interval gets wider."""


@dataclass(frozen=True)
class Steps:
    """The measured steps of one batch size; times in ms."""

    rows: int
    times: tuple[float, ...]
    median: float
    iqr: float
    min: float
    max: float
    n: int


def steps_by_rows(record: Record) -> dict[int, list[float]]:
    """{rows of the batch: step times in ms}, in the order of the steps."""
    times: dict[int, list[float]] = {}
    for rows, time in zip(record.steps["samples"], record.steps["time_ms"], strict=False):
        if rows is not None and time is not None:  # its journal line is not lost
            times.setdefault(rows, []).append(time)
    return times


def usual_steps(record: Record) -> Steps | None:
    """The steps of the most frequent batch size (the larger one of equals); None without steps."""
    rows, times = usual_times(record)
    figures = spread(times)
    return None if figures is None else Steps(rows, tuple(times), **figures)


def usual_times(record: Record) -> tuple[int, list[float]]:
    """(rows, step times in ms) of the most frequent batch size; ``(0, [])`` without steps."""
    by_rows = steps_by_rows(record)
    rows = max(by_rows, key=lambda rows: (len(by_rows[rows]), rows), default=0)
    return rows, by_rows.get(rows, [])


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95% confidence interval."""

    value: float
    low: float
    high: float

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high


def bootstrap_runs(
    estimate: Callable[[Any, Any], Any],
    first: Sequence[RunSamples],
    second: Sequence[RunSamples],
    seed: int = 0,
) -> Interval:
    """The 95% percentile bootstrap (Efron, 1979) of an estimate from two medians, each over several runs.

    ``estimate`` takes two medians, or two arrays of resampled medians. Runs are resampled first, then the
    samples within each run, so that the interval includes the spread between runs (Davison and Hinkley,
    1997, section 3.8). The same seed gives the same interval.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    values = estimate(_resampled_medians(first, rng), _resampled_medians(second, rng))
    low, high = np.quantile(values, (0.025, 0.975))
    medians = [statistics.median(time for run in runs for time in run) for runs in (first, second)]
    return Interval(float(estimate(*medians)), float(low), float(high))


def ratio_of_medians(first: Any, second: Any) -> Any:
    """How many times the first median is the second."""
    return first / second


def _resampled_medians(runs: Sequence[RunSamples], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """The median of each of the RESAMPLES resamples."""
    import numpy as np

    runs = runs[:: -(-len(runs) // MOST_RUNS)]
    most = MOST_SAMPLES // len(runs)
    runs = [run[:: -(-len(run) // most)] for run in runs]
    lengths = np.array([len(run) for run in runs])
    padded = np.full((len(runs), lengths.max()), np.nan)
    for number, run in enumerate(runs):
        padded[number, : len(run)] = run
    drawn = rng.integers(len(runs), size=(RESAMPLES, len(runs)))
    drawn_lengths = lengths[drawn][..., np.newaxis]
    indices = (rng.random((RESAMPLES, *padded.shape)) * drawn_lengths).astype(int)
    values = np.take_along_axis(padded[drawn], indices, axis=2)
    values[np.broadcast_to(np.arange(padded.shape[1]) >= drawn_lengths, values.shape)] = np.nan
    return np.asarray(np.nanmedian(values.reshape(RESAMPLES, -1), axis=1))
