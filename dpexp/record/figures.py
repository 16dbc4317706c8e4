"""The figures: every number that is computed from a Record, its unit and rounding, and where it is shown.

Terminal, MLflow, comparisons, lists, experiments and the ``summary`` of a Record read them, side by side in
this order: a new figure is one entry. docs/comparing.md says what they mean, CONTRIBUTING.md adds one.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any

from dpexp.record.record import Record, Row
from dpexp.record.steps import present, spread, typical
from dpexp.record.view import RecordView


class At(Flag):
    """Where a figure is shown."""

    TERMINAL = auto()  # the head of a run's report, and so of its page and of MLflow's note
    SUMMARY = auto()  # the summary of the Record
    METRIC = auto()  # a single metric of MLflow, by which runs are compared there
    LIST = auto()  # runs.py list
    TABLE = auto()  # the table of a comparison


def typical_of(values: Sequence[float | None]) -> float | None:
    """The geometric mean of several runs' figures; None where one has none."""
    return None if None in values else typical(present(values))


def largest(values: Sequence[float | None]) -> float | None:
    """The largest of the figures that are known; NaN where one is, as of an error that is not finite."""
    return max(present(values), key=lambda value: (value != value, value), default=None)


@dataclass(frozen=True)
class Figure:
    """A number of a run: ``of`` gives it, its samples if it ``is_sampled``, or ``{key: number}``.

    A figure that is not known is None, or empty. ``unit`` decides how it reads (``dpexp.report.units.text``),
    ``digits`` are the significant ones in a metric of MLflow, where 0 means all. ``of_runs`` makes one number
    of those of several runs of one config.
    """

    name: str
    title: str
    unit: str
    of: Callable[[RecordView], Any]
    at: At
    digits: int = 4
    is_sampled: bool = False
    of_runs: Callable[[Sequence[Any]], float | None] = typical_of

    def summarized(self, view: RecordView) -> Any:
        """The figure as a summary has it: of samples ``{median, iqr, min, max, n}``."""
        return spread(self.of(view)) if self.is_sampled else self.of(view)

    def number(self, view: RecordView) -> float | None:
        """The figure as one number: the median of samples, the largest of several."""
        value: Any = self.of(view)
        if isinstance(value, Mapping):
            return largest(list(value.values()))
        return value if not self.is_sampled else statistics.median(value) if value else None

    def rounded(self, view: RecordView) -> float | None:
        """That number with ``digits`` significant ones."""
        number = self.number(view)
        return rounded(number, self.digits) if self.digits and number is not None else number


def rounded(number: float, digits: int = 4) -> float:
    """The number with so many significant digits."""
    return float(f"{number:.{digits}g}")


def _of_two_runs(view: RecordView) -> None:
    """Unknown in a single run: a comparison or sweep computes it."""


def _losses(view: RecordView) -> list[float]:
    return present(view.record.steps["loss"])


def _peak_mb(view: RecordView) -> float | None:
    most = largest(list(view.record.memory.values()))
    return None if most is None else most / 1e6


def _nonfinite(view: RecordView) -> dict[str, dict[str, int]]:
    """{name: {nan, inf, first}} of losses and metrics that are not finite; ``first`` is an index."""
    flags = {}
    for name, values in {"loss": view.record.steps["loss"], **view.record.metrics}.items():
        indices = [i for i, value in enumerate(values) if value is not None and not math.isfinite(value)]
        if indices:
            nan = sum(math.isnan(values[i]) for i in indices)
            flags[name] = {"nan": nan, "inf": len(indices) - nan, "first": indices[0]}
    return flags


_SINGLE, _RATE = At.SUMMARY | At.METRIC, At.SUMMARY | At.TERMINAL
_STEP = _SINGLE | At.LIST | At.TABLE
FIGURES = (
    Figure("step_ms", "step", "ms", lambda view: view.usual_times, _STEP, is_sampled=True),
    Figure("samples_per_s", "samples/s", "", lambda view: view.samples_per_s, _RATE | At.METRIC | At.TABLE),
    Figure("wall_samples_per_s", "samples/s by wall clock", "", lambda view: view.wall_samples_per_s, _RATE),
    Figure("speed_up", "speed-up [95%]", "x", _of_two_runs, At.METRIC | At.TABLE),
    Figure("loss", "loss", "", _losses, At.TERMINAL, is_sampled=True),
    Figure("metrics", "metrics", "", lambda view: view.metrics, At.TERMINAL | At.TABLE),
    Figure("phases_ms", "phases", "ms", lambda view: view.phase_medians, At.SUMMARY),
    Figure("phase_coverage", "phases cover", "share", lambda view: view.phase_coverage, _SINGLE),
    Figure("bytes_moved", "moved per step", "B", lambda view: view.bytes_moved, At.METRIC, digits=0,
           of_runs=largest),
    Figure("peak_bytes", "peak memory", "B", lambda view: view.record.memory, At.TABLE,
           of_runs=largest),
    Figure("peak_MB", "peak memory", "MB", _peak_mb, At.METRIC),
    Figure("memory_bytes", "memory", "B", lambda view: view.memory_bytes, At.SUMMARY),
    Figure("flops", "FLOPs", "FLOP", lambda view: view.flops, At.SUMMARY),
    Figure("flops_per_s", "FLOP/s", "FLOP/s", lambda view: view.flops_per_s, _SINGLE),
    Figure("tokens_per_s", "tokens/s", "", lambda view: view.tokens_per_s, _SINGLE),
    Figure("max_error", "largest error", "error", lambda view: view.errors, At.METRIC, digits=2,
           of_runs=largest),
    Figure("gradient_error", "gradient error", "error", lambda view: view.errors.get("gradient_error"),
           At.TABLE, of_runs=largest),
    Figure("nonfinite", "not finite", "", _nonfinite, At.SUMMARY),
)  # fmt: skip


@functools.cache
def figures(at: At) -> tuple[Figure, ...]:
    """Those that are shown at one of these places, in this order."""
    return tuple(figure for figure in FIGURES if at & figure.at)


def summarize(record: Record) -> Row:
    """Write the known figures of the summary; returns it. What a run itself wrote into it stays."""
    view = RecordView(record)
    found = {figure.name: figure.summarized(view) for figure in figures(At.SUMMARY)}
    record.summary |= {name: value for name, value in found.items() if value not in (None, {})}
    return record.summary
