"""Phases of a step as a tree, with their medians, spread and share of the step.

Phases nest in time: with the strategy ``block``, scatter lies inside forward. The timeline gives the nesting,
so that a new strategy needs no change here.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dpexp.record.figures.phase_times import samples, step_ms
from dpexp.record.figures.step_times import spread
from dpexp.record.record import Record, Row
from dpexp.record.traffic.communication import by_phase
from dpexp.report import units

SMALLEST_SHARE = 0.0005
"""Smaller shares read 0.0%."""


@dataclass(frozen=True)
class Phase:
    """One phase over all phase-timed steps: times in ms, ``share`` of the median phase-timed step.

    ``bytes`` are those that it moves between devices in a step of the largest batch.
    """

    name: str
    depth: int
    median: float
    iqr: float
    n: int
    share: float
    bytes: int = 0

    @property
    def text(self) -> str:
        """Its time, and what it moves: ``0.21 ms [IQR 0.02 ms], 3.2 kB``."""
        moved = f", {units.size(self.bytes)}" if self.bytes else ""
        return f"{units.ms(self.median)} [IQR {units.ms(self.iqr)}]{moved}"

    @property
    def is_visible(self) -> bool:
        """Whether a chart draws it: a share that reads 0.0% is no bar."""
        return self.share >= SMALLEST_SHARE


def phases(record: Record) -> list[Phase]:
    """The phases by their start, each followed by the phases inside it."""
    total, moved = step_ms(record), by_phase(record)
    found = []
    for name, depth in _tree(record):
        figures = spread(samples(record, name))
        if figures is not None:
            share = figures["median"] / total if total and math.isfinite(total + figures["median"]) else 0.0
            spread_of = (figures["median"], figures["iqr"], figures["n"])
            found.append(Phase(name, depth, *spread_of, share, moved.get(name, 0)))
    return found


def parents(timeline: list[Row]) -> dict[str, str]:
    """{phase: the phase that contains it}, read from the step with the most phases."""
    steps: dict[int, list[Row]] = {}
    for row in timeline:
        if row["phase"] != "step" and row["replica"] is None:
            steps.setdefault(row["step"], []).append(row)
    rows = max(steps.values(), key=len, default=[])
    spans = [(row["phase"], row["start_us"], row["end_us"]) for row in rows]
    inside = {}
    for phase, start, end in spans:
        around = {
            outer: last - first
            for outer, first, last in spans
            if outer != phase and _contains((first, last), (start, end))
        }
        if around:
            inside[phase] = min(around, key=lambda outer: around[outer])
    return inside


def _contains(outer: tuple[float, float], inner: tuple[float, float]) -> bool:
    """Whether a span lies inside a longer one; what took no time lies between two spans, not in either."""
    (first, last), (start, end) = outer, inner
    if start == end:
        return first < start < last
    return first <= start and end <= last and last - first > end - start


def _tree(record: Record) -> Iterator[tuple[str, int]]:
    """(phase, depth), depth first, each level by the first start in the timeline."""
    inside = parents(record.timeline)
    start = {row["phase"]: row["start_us"] for row in reversed(record.timeline)}

    def children(parent: str | None, depth: int) -> Iterator[tuple[str, int]]:
        names = [name for name in record.phases if inside.get(name) == parent]
        for name in sorted(names, key=lambda name: start.get(name, float("inf"))):
            yield name, depth
            yield from children(name, depth + 1)

    return children(None, 0)
