"""Step times: the one definition of step time, samples a second, speed-up and efficiency.

The last batch of an epoch is smaller, so that the steps of a run mix two batch sizes. Both figures are
those of the most frequent size. Lists, summaries, reports, findings and MLflow all show these;
docs/definitions.md says what a step is.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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


def speed_up(baseline_ms: float, step_ms: float) -> float:
    """How many times faster the step is than the baseline's, of the same global batch."""
    return baseline_ms / step_ms


def efficiency(speed_up: float, times_devices: float) -> float:
    """The share of the ideal speed-up that so many times the baseline's devices reach."""
    return speed_up / times_devices


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


def spread(samples: Sequence[float]) -> dict[str, Any] | None:
    """{median, iqr, min, max, n} of the samples, in their unit; None without any."""
    if not samples:
        return None
    low, middle, high = (
        (samples[0],) * 3 if len(samples) == 1 else statistics.quantiles(samples, n=4, method="inclusive")
    )
    return {"median": middle, "iqr": high - low, "min": min(samples), "max": max(samples), "n": len(samples)}
