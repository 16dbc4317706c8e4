"""Step times: the one definition of step time and of samples a second.

The last batch of an epoch is smaller, so that the steps of a run mix two batch sizes. Both figures are
those of the most frequent size. Lists, summaries, reports, findings and MLflow all show these;
docs/definitions.md says what a step is.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpexp.record.record import Record


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

    @property
    def samples_per_s(self) -> float | None:
        return rate(self.rows, self.median)


def rate(rows: int, step_ms: float) -> float | None:
    """Samples a second: the rows of a batch over the median time of its step; None for a time of 0."""
    return 1000 * rows / step_ms if step_ms else None


def typical(figures: Iterable[float]) -> float:
    """The figure of several runs: the geometric mean of theirs; 0 if one of them is."""
    figures = list(figures)
    if min(figures) <= 0:
        return 0.0
    return figures[0] if len(figures) == 1 else math.exp(math.fsum(map(math.log, figures)) / len(figures))


def steps_by_rows(record: Record) -> dict[int, list[float]]:
    """{rows of the batch: step times in ms}, in the order of the steps."""
    times: defaultdict[int, list[float]] = defaultdict(list)
    for rows, time in zip(record.steps["samples"], record.steps["time_ms"], strict=False):
        if rows is not None and time is not None:  # its journal line is not lost
            times[rows].append(time)
    return dict(times)


def wall_times(record: Record) -> list[float | None]:
    """The wall time of each measured step in ms, with what was between it and the step before.

    Empty in Records of programs and of versions that did not measure it.
    """
    return record.steps.get("wall_ms", [])


def wall_samples_per_s(record: Record) -> float | None:
    """The rows of all measured steps over the wall time of the measured part; None where a step lacks it.

    A step that was not measured lacks both.
    """
    samples, wall = record.steps["samples"], wall_times(record)
    known = [ms for rows, ms in zip(samples, wall, strict=False) if rows is not None and ms is not None]
    measured = present(samples)
    if not known or len(known) < len(measured):
        return None
    return rate(sum(measured), math.fsum(known))


def usual_steps(by_rows: Mapping[int, Sequence[float]]) -> Steps | None:
    """The steps of the most frequent batch size (the larger one of equals); None without steps."""
    if not by_rows:
        return None
    rows = max(by_rows, key=lambda rows: (len(by_rows[rows]), rows))
    return Steps(rows, tuple(by_rows[rows]), **spread(by_rows[rows]) or {})


def spread(samples: Sequence[float]) -> dict[str, Any] | None:
    """{median, iqr, min, max, n} of the samples, in their unit; None without any."""
    if not samples:
        return None
    low, middle, high = quartiles(samples)
    return {"median": middle, "iqr": high - low, "min": min(samples), "max": max(samples), "n": len(samples)}


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """The quartiles of one sample or more, between neighbours in proportion: of 1 to 5 these are 2, 3, 4."""
    if len(samples) == 1:
        return samples[0], samples[0], samples[0]
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, middle, high


def present(values: Iterable[Any]) -> list[Any]:
    """The samples without those that were not measured."""
    return [value for value in values if value is not None]
