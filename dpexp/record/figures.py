"""The figures: every number that is computed from a Record, and where it stands.

Terminal, MLflow, comparisons, lists, experiments and the ``summary`` of a Record read them: a new figure is
one entry. Where figures stand side by side, they do in this order. docs/definitions.md says
what they mean, docs/extending.md adds one.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any

from dpexp.record.batches import parameter_bytes, replicated_bytes
from dpexp.record.record import Record, Row
from dpexp.record.steps import spread, typical
from dpexp.record.view import RecordView

DIGITS = 4
"""The significant digits of a metric of MLflow, unless a figure says another number."""


class At(Flag):
    """Where a figure stands."""

    TERMINAL = auto()
    """The head of a run's report, and so of its page and of MLflow's note."""
    SUMMARY = auto()
    """The ``summary`` of the Record."""
    METRIC = auto()
    """A single metric of MLflow, by which runs are compared there."""
    COLUMN = auto()
    """A single metric that is a column of MLflow's list of runs, too."""
    LIST = auto()
    """``runs.py list``."""
    TABLE = auto()
    """The table of a comparison."""
    ROWS = auto()
    """The CSV and JSON of a comparison."""
    CLAIM = auto()
    """The claims, columns and pictures of experiments."""


def typical_of(values: Sequence[float | None]) -> float | None:
    """The geometric mean of several runs' figures; None where one has none."""
    known = [value for value in values if value is not None]
    return typical(known) if known and len(known) == len(values) else None


def largest_of(values: Sequence[float | None]) -> float | None:
    """The largest of several runs' figures; None where one has none."""
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None


def largest_known(values: Sequence[float | None]) -> float | None:
    """The largest of several runs' figures, of those that have one."""
    return max((value for value in values if value is not None), default=None)


@dataclass(frozen=True)
class Figure:
    """A number of a run, or one for each of several keys.

    ``of`` gives it, or ``{key: number}``, or None where it is not known; its samples if it ``is_sampled``,
    whose median it then is. ``unit`` decides how it reads (``dpexp.report.units.text``), and ``unknown`` is
    read where there is none. ``digits`` are the significant ones in a metric of MLflow, where 0 means all.
    ``of_parts`` makes one number of those by key, ``of_runs`` one of those of several runs of one config.
    ``is_kept``: if unknown, it is null in a summary, and not left out. ``varies``: as what is sampled, it is
    another in each run, so that intervals compare it.
    """

    name: str
    title: str
    unit: str
    of: Callable[[RecordView], Any]
    at: At
    digits: int = DIGITS
    unknown: str = "-"
    is_sampled: bool = False
    varies: bool = False
    is_kept: bool = False
    of_parts: Callable[[Sequence[Any]], float | None] = sum
    of_runs: Callable[[Sequence[Any]], float | None] = typical_of

    def summarized(self, view: RecordView) -> Any:
        """The figure as a summary has it: of samples ``{median, iqr, min, max, n}``."""
        return spread(self.of(view)) if self.is_sampled else self.of(view)

    def number(self, view: RecordView) -> float | None:
        """The figure as one number: the median of samples, ``of_parts`` of several."""
        value: Any = self.of(view)
        if self.is_sampled:
            return statistics.median(value) if value else None
        if isinstance(value, Mapping):
            return self.of_parts(list(value.values()))
        number: float | None = value
        return number

    def rounded(self, view: RecordView) -> float | None:
        """That number with ``digits`` significant ones."""
        number = self.number(view)
        return rounded(number, self.digits) if self.digits and number is not None else number


def rounded(number: float, digits: int = DIGITS) -> float:
    """The number with so many significant digits."""
    return float(f"{number:.{digits}g}")


def _of_two_runs(view: RecordView) -> None:
    """Unknown in a single run: a comparison or sweep computes it."""


def _sample_us(view: RecordView) -> list[float]:
    usual = view.usual
    return [] if usual is None else [1000 * ms / usual.rows for ms in usual.times]


def _loss(view: RecordView) -> dict[str, float]:
    return {"first": view.losses[0], "last": view.losses[-1]} if view.losses else {}


def _last(losses: Sequence[float]) -> float | None:
    return losses[-1] if losses else None


def _bytes_by_kind(view: RecordView) -> Counter[str] | None:
    """{scatter and the like: bytes}"""
    if view.bytes_moved is None:
        return None
    found: Counter[str] = Counter()
    for move in view.moves:
        found[move.what] += move.bytes
    return found


def _megabytes(view: RecordView) -> dict[str, float]:
    return {device: count / 1e6 for device, count in view.record.memory.items()}


def _errors_by_kind(view: RecordView) -> dict[str, float]:
    """{gradient and the like: its error}"""
    return {name.removesuffix("_error"): error for name, error in view.errors.items()}


def _nonfinite(view: RecordView) -> dict[str, dict[str, int]]:
    """{name: {nan, inf, first}} of losses and metrics that are not finite; ``first`` is an index."""
    flags = {}
    for name, values in {"loss": view.record.steps["loss"], **view.record.metrics}.items():
        indices = [i for i, value in enumerate(values) if value is not None and not math.isfinite(value)]
        if indices:
            nan = sum(1 for i in indices if math.isnan(values[i]))
            flags[name] = {"nan": nan, "inf": len(indices) - nan, "first": indices[0]}
    return flags


_RATE = At.TERMINAL | At.SUMMARY | At.ROWS
FIGURES = (
    Figure(
        "step_ms", "step", "ms", lambda view: view.usual_times,
        _RATE | At.COLUMN | At.LIST | At.TABLE | At.CLAIM, is_sampled=True, is_kept=True,
    ),
    Figure("steps", "steps", "", lambda view: len(view.usual_times), At.ROWS, of_runs=sum),
    Figure(
        "samples_per_s", "samples/s", "", lambda view: view.samples_per_s, _RATE | At.COLUMN | At.TABLE,
        is_kept=True,
    ),
    Figure(
        "wall_samples_per_s", "samples/s by wall clock", "", lambda view: view.wall_samples_per_s, _RATE
    ),
    Figure("sample_us", "time per sample", "µs", _sample_us, At.CLAIM, is_sampled=True),
    Figure("speed_up", "speed-up [95%]", "x", _of_two_runs, At.COLUMN | At.TABLE | At.ROWS),
    Figure("efficiency", "efficiency", "share", _of_two_runs, At.TABLE),
    Figure("loss", "loss", "", _loss, At.TERMINAL, digits=6, of_parts=_last),
    Figure("metrics", "metrics", "", lambda view: view.metrics, At.TERMINAL | At.TABLE | At.ROWS),
    Figure("phases_ms", "phases", "ms", lambda view: view.phase_medians, At.SUMMARY, is_kept=True),
    Figure("phase_ms", "{}", "ms", lambda view: view.phase_samples, At.CLAIM, is_sampled=True),
    Figure("phase_share", "share of {}", "share", lambda view: view.phase_shares, At.CLAIM),
    Figure(
        "phase_coverage", "phases cover", "share", lambda view: view.phase_coverage, At.SUMMARY | At.METRIC,
        is_kept=True,
    ),
    Figure("bytes_moved", "moved", "B", lambda view: view.bytes_moved, At.COLUMN, digits=0),
    Figure("moved_bytes", "moved a step", "B", _bytes_by_kind, At.CLAIM),
    Figure("parameter_bytes", "parameters", "B", lambda view: parameter_bytes(view.record), At.CLAIM),
    Figure(
        "replicated_bytes", "copied to replicas a step", "B",
        lambda view: replicated_bytes(view.record), At.CLAIM,
    ),
    Figure("peak_memory", "peak memory", "B", lambda view: view.record.memory, At.TABLE),
    Figure(
        "peak_bytes", "peak memory of {}", "B", lambda view: view.record.memory, At.ROWS | At.CLAIM,
        varies=True, of_parts=largest_known, of_runs=largest_of,
    ),
    Figure("peak_MB", "peak memory", "MB", _megabytes, At.COLUMN, of_parts=largest_known),
    Figure("memory_bytes", "memory", "B", lambda view: view.memory_bytes, At.SUMMARY),
    Figure(
        "activation_bytes", "activations", "B",
        lambda view: view.memory_bytes.get("activations"), At.METRIC | At.ROWS, of_runs=largest_known,
    ),
    Figure("flops", "FLOPs", "FLOP", lambda view: view.flops, At.SUMMARY),
    Figure("flops_per_s", "FLOP/s", "FLOP/s", lambda view: view.flops_per_s, _RATE | At.METRIC),
    Figure(
        "peak_share", "share of the peak", "share", lambda view: view.peak_share, At.SUMMARY | At.METRIC
    ),
    Figure("tokens_per_s", "tokens/s", "", lambda view: view.tokens_per_s, At.SUMMARY | At.METRIC),
    Figure(
        "joules_per_step", "energy a step", "J", lambda view: view.joules_per_step, At.SUMMARY | At.METRIC
    ),
    Figure("verification", "errors", "error", lambda view: view.errors, At.TERMINAL),
    Figure(
        "max_error", "largest error", "error", lambda view: view.errors,
        At.COLUMN, digits=2, of_parts=largest_known,
    ),
    Figure(
        "gradient_error", "gradient error", "error", lambda view: view.errors.get("gradient_error"),
        At.TABLE | At.ROWS, unknown="not checked", of_runs=largest_of,
    ),
    Figure("error", "error of {}s", "error", _errors_by_kind, At.CLAIM, of_parts=largest_known),
    Figure("nonfinite", "not finite", "", _nonfinite, At.SUMMARY),
)  # fmt: skip


@functools.cache
def figures(at: At) -> tuple[Figure, ...]:
    """Those that stand at one of these places, in the order of the registry."""
    return tuple(figure for figure in FIGURES if at & figure.at)


def summarize(record: Record) -> Row:
    """Compute the figures of the summary again; returns it. What a run itself wrote into it stays."""
    view = RecordView(record)
    for figure in figures(At.SUMMARY):
        value = figure.summarized(view)
        if figure.is_kept or value not in (None, {}):
            record.summary[figure.name] = value
    return record.summary
