"""Phase times: the times of phases in the phase-timed steps of the usual batch size.

The phase-timed steps are a pass of their own, which starts at the first batch of an epoch. Of those steps
only the ones whose batch is as large as that of the step time count, on every screen. All count where sizes
are unknown, as in Records of programs.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dpexp.record.record import Record, Row

REST = "(rest)"
"""What of a step is in no phase."""
_ROUNDING = 1e-9
"""A share below this is the rounding of a sum of shares."""


@dataclass(frozen=True)
class Phase:
    """One phase over the phase-timed steps: times in ms, ``share`` of a step in their mean.

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


def usual_numbers(record: Record, usual_rows: int) -> set[int] | None:
    """The phase-timed steps that phases are of: of so many rows, if there are any, else of the most frequent.

    None where sizes are unknown.
    """
    numbers = {row["step"] for row in record.timeline if row["phase"] == "step"}
    sizes = {number: rows for number in numbers if (rows := rows_of(record, number)) is not None}
    if usual_rows not in sizes.values():
        usual_rows = max(statistics.multimode(sizes.values()), default=0)
    return {number for number, rows in sizes.items() if rows == usual_rows} or None


def rows_of(record: Record, step: int) -> int | None:
    """Rows of the batch of a phase-timed step; None where sizes are unknown."""
    total, size = record.data.get("samples"), record.config.get("batch_size")
    if not total or not size or min(total, size) < 1 or record.data.get("batches"):
        return None
    return int(min(size, total - size * (step % -(-total // size))))


def phase_samples(record: Record, usual: set[int] | None) -> dict[str, list[float]]:
    """{phase: its times in these steps}; all of them where they are not one to a step."""
    count = sum(row["phase"] == "step" for row in record.timeline)
    return {
        name: [
            ms
            for number, ms in enumerate(times)
            if ms is not None and (usual is None or count != len(times) or number in usual)
        ]
        for name, times in record.phases.items()
    }


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
    steps: defaultdict[int, list[Row]] = defaultdict(list)
    for row in timeline:
        if row["phase"] != "step" and row["replica"] is None:
            steps[row["step"]].append(row)
    rows = max(steps.values(), key=len, default=[])
    inside = {}
    for row in rows:
        around = [other for other in rows if other["phase"] != row["phase"] and _contains(other, row)]
        if around:
            inside[row["phase"]] = min(around, key=_length)["phase"]
    return inside


def _length(row: Row) -> float:
    return float(row["end_us"] - row["start_us"])


def _contains(outer: Row, inner: Row) -> bool:
    """Whether a span lies inside a longer one; what took no time lies between two spans, not in either."""
    if not _length(inner):
        return bool(outer["start_us"] < inner["start_us"] < outer["end_us"])
    is_within = outer["start_us"] <= inner["start_us"] and inner["end_us"] <= outer["end_us"]
    return is_within and _length(outer) > _length(inner)


@dataclass
class StepSpans:
    """One phase-timed step: its time, that of each phase in it, and what lies inside any phase; in ms."""

    number: int
    ms: float
    phases: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    covered: float = 0.0

    @property
    def rest(self) -> float:
        """The time that is in no phase."""
        return self.ms - self.covered


def step_spans(record: Record, usual: set[int] | None) -> list[StepSpans]:
    """These phase-timed steps; all where they are None.

    Replicas are left out: they are inside a phase, or on another rank.
    """
    spans: defaultdict[int, list[Row]] = defaultdict(list)
    steps: dict[int, StepSpans] = {}
    for row in record.timeline:
        if row.get("replica") is not None or (usual is not None and row["step"] not in usual):
            continue
        if row["phase"] == "step":
            steps[row["step"]] = StepSpans(row["step"], _length(row) / 1000)
        else:
            spans[row["step"]].append(row)
    for number, step in steps.items():
        for row in spans[number]:
            step.phases[row["phase"]] += _length(row) / 1000
        step.covered = union_length((row["start_us"], row["end_us"]) for row in spans[number]) / 1000
    return list(steps.values())


def phase_shares(steps: Iterable[StepSpans]) -> dict[str, float]:
    """{phase: its part of a step, the mean over the steps}, and that of what is in no phase.

    So phases that follow each other and the rest add up to 1.
    """
    known = [step for step in steps if step.ms > 0 and math.isfinite(step.ms)]
    if not known:
        return {}
    names = dict.fromkeys(name for step in known for name in step.phases)
    found = {name: statistics.fmean(step.phases[name] / step.ms for step in known) for name in names}
    rest = 1 - statistics.fmean(step.covered / step.ms for step in known)
    return found | {REST: rest if rest > _ROUNDING else 0.0}


def union_length(intervals: Iterable[tuple[float, float]]) -> float:
    """The length that the intervals (start, end) cover together, in their unit."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered
