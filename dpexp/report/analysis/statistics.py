"""Bootstrap intervals of what is estimated from the step times of one run.

``scipy.stats.bootstrap`` resamples one level only, runs or steps: the bootstrap stays here.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

RunSamples = Sequence[float]
RESAMPLES = 1000
MOST_SAMPLES, MOST_RUNS = 400, 40
"""Of more samples, or runs, an evenly spaced subset of this size is resampled; the interval gets wider."""


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
