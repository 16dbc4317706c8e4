"""Figure: a number of a run with its name, unit and rounding, how a view gives it, and where it stands."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any

from dpexp.record.figures.step_times import spread, typical
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
