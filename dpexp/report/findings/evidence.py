"""What findings are made of: a sentence with its figures, and a Record's facts read once for all rules."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dpexp.record import Record
from dpexp.report.analysis import phases as phase_tree
from dpexp.report.analysis.phases import Phase
from dpexp.report.analysis.shapes import Batches, batches
from dpexp.report.analysis.statistics import Interval, Steps, bootstrap, steps_by_rows, usual_steps

ENOUGH = 8
"""Fewer samples than these of a kind carry no statement about their spread or growth."""


@dataclass(frozen=True)
class Finding:
    """``text`` says what is so, with its figures; ``advice`` what to try; ``figures`` are the numbers."""

    name: str
    text: str
    advice: str
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Growth:
    """How step time grows with the rows of a batch, from the run's smallest and largest batches."""

    few: int
    many: int
    few_ms: float
    many_ms: float
    per_row: Interval
    """ms a further row."""
    fixed: Interval
    """The share of a step of ``many`` rows that would be left for a batch of no rows."""


class Evidence:
    """A Record, and what several rules ask of it."""

    def __init__(self, record: Record) -> None:
        self.record = record

    @cached_property
    def phases(self) -> dict[str, Phase]:
        return {phase.name: phase for phase in phase_tree.phases(self.record)}

    @cached_property
    def step_ms(self) -> float:
        """Median time of a phase-timed step."""
        return phase_tree.step_ms(self.record)

    @cached_property
    def batches(self) -> list[Batches]:
        return batches(self.record)

    @cached_property
    def usual(self) -> Steps | None:
        return usual_steps(self.record)

    @cached_property
    def devices(self) -> list[str]:
        """The devices that replicas may run on: those in use, the host left out."""
        return [device for device in self.record.devices["used"] if device != "cpu"]

    def share(self, *names: str) -> float:
        """The part of a step that these phases take together; phases that aren't there take none."""
        return sum(self.phases[name].share for name in names if name in self.phases)

    def replicas_ms(self) -> float | None:
        """Median over steps of the time, ms, in which some replica computes; None without replicas."""
        usual = phase_tree.usual_numbers(self.record)
        spans: dict[int, list[tuple[float, float]]] = {}
        for row in self.record.timeline:
            if row["replica"] is not None and (usual is None or row["step"] in usual):
                spans.setdefault(row["step"], []).append((row["start_us"], row["end_us"]))
        return statistics.median(map(_union, spans.values())) / 1000 if spans else None

    def growth(self) -> Growth | None:
        """None without two batch sizes, at least two to one, that ran on equally many devices."""
        by_rows = {rows: times for rows, times in steps_by_rows(self.record).items() if len(times) >= ENOUGH}
        if not by_rows or max(by_rows) < 2 * min(by_rows):
            return None
        few, many = min(by_rows), max(by_rows)
        if len({len(group.split) for group in self.batches if group.rows in (few, many)}) > 1:
            return None

        def slope(large: Any, small: Any) -> Any:
            return (large - small) / (many - few)

        def fixed(large: Any, small: Any) -> Any:
            return 1 - slope(large, small) * many / large

        return Growth(
            few,
            many,
            statistics.median(by_rows[few]),
            statistics.median(by_rows[many]),
            bootstrap(slope, by_rows[many], by_rows[few]),
            bootstrap(fixed, by_rows[many], by_rows[few]),
        )


def _union(spans: list[tuple[float, float]]) -> float:
    """The length that the spans cover together."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered
