"""Phase times: the times of phases in the phase-timed steps of the usual batch size.

The phase-timed steps are a pass of their own, which starts at the first batch of an epoch. Of those steps
only the ones whose batch is as large as that of the step time count, on every screen. All count where sizes
are unknown, as in Records of programs.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dpexp.record.record import Record, Row


@dataclass(frozen=True)
class Phase:
    """One phase over the phase-timed steps: times in ms, ``share`` of the median phase-timed step.

    ``depth`` counts the phases around it. ``bytes`` are those that it moves between devices in a step of the
    largest batch.
    """

    name: str
    depth: int
    median: float
    iqr: float
    n: int
    share: float
    bytes: int = 0


def rows_of(record: Record, step: int) -> int | None:
    """Rows of the batch of a phase-timed step; None where sizes are unknown."""
    total, size = record.data.get("samples"), record.config.get("batch_size")
    if not total or not size or min(total, size) < 1 or record.data.get("batches"):
        return None
    return int(min(size, total - size * (step % -(-total // size))))


def usual_numbers(record: Record, rows: int) -> set[int] | None:
    """The phase-timed steps of batches with so many rows; of the most frequent size if none has them.

    None where sizes are unknown.
    """
    numbers = {row["step"] for row in record.timeline if row["phase"] == "step"}
    sizes = {number: found for number in numbers if (found := rows_of(record, number)) is not None}
    usual = rows if rows in sizes.values() else max(statistics.multimode(sizes.values()), default=None)
    return {number for number, found in sizes.items() if found == usual} or None


def phase_samples(record: Record, usual: set[int] | None) -> dict[str, list[float]]:
    """{phase: its times in ms in these steps}; in all where they are None, or not one to a step."""
    count = sum(row["phase"] == "step" for row in record.timeline)
    return {
        name: [
            ms
            for number, ms in enumerate(times)
            if ms is not None and (usual is None or count != len(times) or number in usual)
        ]
        for name, times in record.phases.items()
    }


def step_samples(record: Record, usual: set[int] | None) -> list[float]:
    """Times in ms of these phase-timed steps; of all where they are None."""
    return [
        (row["end_us"] - row["start_us"]) / 1000
        for row in record.timeline
        if row["phase"] == "step" and (usual is None or row["step"] in usual)
    ]


def phase_tree(record: Record) -> Iterator[tuple[str, int]]:
    """(phase, depth), depth first, each level by the first start in the timeline.

    Phases nest in time: with the strategy ``block``, scatter lies inside forward. So a new strategy needs no
    change here.
    """
    inside = parents(record.timeline)
    start = {row["phase"]: row["start_us"] for row in reversed(record.timeline)}

    def children(parent: str | None, depth: int) -> Iterator[tuple[str, int]]:
        names = [name for name in record.phases if inside.get(name) == parent]
        for name in sorted(names, key=lambda name: start.get(name, float("inf"))):
            yield name, depth
            yield from children(name, depth + 1)

    return children(None, 0)


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


def coverage(timeline: Iterable[Row]) -> float | None:
    """The fraction of the phase-timed steps that is inside a phase; None without such steps.

    Replicas are left out: they are inside a phase, or on another rank.
    """
    steps_us = 0.0
    spans: dict[int, list[tuple[float, float]]] = {}
    for row in timeline:
        if row["phase"] == "step":
            steps_us += row["end_us"] - row["start_us"]
        elif row.get("replica") is None:
            spans.setdefault(row["step"], []).append((row["start_us"], row["end_us"]))
    return sum(map(union_length, spans.values())) / steps_us if steps_us > 0 else None


def union_length(intervals: Iterable[tuple[float, float]]) -> float:
    """The length that the intervals (start, end) cover together, in their unit."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered
