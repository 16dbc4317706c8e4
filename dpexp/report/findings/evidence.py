"""A finding, and the facts of a Record that the rules read."""

import statistics
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dpexp.record import Record, steps_by_rows, usual_steps
from dpexp.record.record import union_length
from dpexp.report.analysis import layout
from dpexp.report.analysis import phases as phase_tree
from dpexp.report.analysis.shapes import batches
from dpexp.report.analysis.statistics import Interval, bootstrap_runs

ENOUGH = 8
"""Fewer samples do not support a statement about their spread or growth."""


@dataclass(frozen=True)
class Finding:
    """``text`` states what was found, ``advice`` what to try; ``figures`` are the numbers of the text."""

    text: str
    advice: str
    figures: dict[str, float]


@dataclass(frozen=True)
class Growth:
    """How step time grows with the rows of a batch, from the run's smallest and largest batches.

    ``per_row`` is in ms for each further row; ``fixed`` is the share of a step of ``many`` rows that a
    batch of no rows would still take.
    """

    few: int
    many: int
    few_ms: float
    many_ms: float
    per_row: Interval
    fixed: Interval


class Evidence:
    """A Record, and the facts that several rules read."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.phases = {phase.name: phase for phase in phase_tree.phases(record)}
        self.step_ms = phase_tree.step_ms(record)  # the median of the phase-timed steps
        self.batches = batches(record)
        self.usual = usual_steps(record)
        self.devices = layout.without_host(record)

    def replicas_ms(self) -> float | None:
        """Median over steps of the time, ms, in which any replica computes; None without replicas."""
        usual = phase_tree.usual_numbers(self.record)
        intervals: dict[int, list[tuple[float, float]]] = {}
        for row in self.record.timeline:
            if row["replica"] is not None and (usual is None or row["step"] in usual):
                intervals.setdefault(row["step"], []).append((row["start_us"], row["end_us"]))
        return statistics.median(map(union_length, intervals.values())) / 1000 if intervals else None

    @cached_property
    def growth(self) -> Growth | None:
        """None without two batch sizes, one at least twice the other, that ran on equally many devices."""
        by_rows = {rows: times for rows, times in steps_by_rows(self.record).items() if len(times) >= ENOUGH}
        few, many = min(by_rows, default=0), max(by_rows, default=0)
        replicas = {len(group.split) for group in self.batches if group.rows in (few, many)}
        if not by_rows or many < 2 * few or len(replicas) > 1:
            return None

        def slope(large: Any, small: Any) -> Any:
            return (large - small) / (many - few)

        def fixed(large: Any, small: Any) -> Any:
            return 1 - slope(large, small) * many / large

        few_ms, many_ms = statistics.median(by_rows[few]), statistics.median(by_rows[many])
        times = [by_rows[many]], [by_rows[few]]
        return Growth(
            few, many, few_ms, many_ms, bootstrap_runs(slope, *times), bootstrap_runs(fixed, *times)
        )
