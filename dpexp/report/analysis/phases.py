"""Phases of a step as a tree, with their medians, spread and share of the step.

Phases nest in time: under ``block`` scatter lies inside forward. Which phase lies in which is read
from the timeline, so that a new strategy needs no change here.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from dpexp.record import Record, Row, spread
from dpexp.report.analysis.statistics import most_frequent

ORDER = (
    "embedding",
    "transfer",
    "forward",
    "dense",
    "scatter",
    "replicate",
    "parallel_apply",
    "gather",
    "loss",
    "backward",
    "allreduce",
    "optimizer",
)
"""The order in which phases are listed where the timeline doesn't tell."""


@dataclass(frozen=True)
class Phase:
    """One phase over all phase-timed steps: times in ms, ``share`` of the median phase-timed step."""

    name: str
    depth: int
    median: float
    iqr: float
    n: int
    share: float


def phases(record: Record) -> list[Phase]:
    """The phases in order of their start, each followed by those inside it."""
    inside = parents(record.timeline)
    whole = step_ms(record)
    found = []
    for name in _ordered(record, inside):
        figures = spread(samples(record, name))
        if figures is not None:
            share = figures["median"] / whole if whole else 0.0
            depth = len(_ancestors(name, inside))
            found.append(Phase(name, depth, figures["median"], figures["iqr"], figures["n"], share))
    return found


def samples(record: Record, name: str) -> list[float]:
    """Times in ms of a phase in the steps of the usual batch size; in all steps where that isn't known."""
    usual, times = usual_numbers(record), record.phases[name]
    count = sum(row["phase"] == "step" for row in record.timeline)
    if usual is None or count != len(times):
        return times
    return [ms for number, ms in enumerate(times) if number in usual]


def step_samples(record: Record) -> list[float]:
    """Times in ms of the phase-timed steps of the usual batch size."""
    usual = usual_numbers(record)
    return [
        (row["end_us"] - row["start_us"]) / 1000
        for row in record.timeline
        if row["phase"] == "step" and (usual is None or row["step"] in usual)
    ]


def step_ms(record: Record) -> float:
    """Median time in ms of those steps; the sum of the top-level phases without a timeline."""
    whole = step_samples(record)
    if whole:
        return statistics.median(whole)
    inside = parents(record.timeline)
    medians = [statistics.median(ms) for name, ms in record.phases.items() if ms and name not in inside]
    return float(sum(medians))


def rows_of(record: Record, step: int) -> int | None:
    """Rows of the batch of a phase-timed step: these steps begin an epoch, as the measured ones do."""
    samples, size = record.data.get("samples"), record.config.get("batch_size")
    if samples and size:
        return int(min(size, samples - size * (step % -(-samples // size))))
    sizes = record.steps["samples"]
    return sizes[step] if step < len(sizes) else None


def usual_numbers(record: Record) -> set[int] | None:
    """The phase-timed steps whose batch has the most frequent size; None where sizes aren't known."""
    numbers = {row["step"] for row in record.timeline if row["phase"] == "step"}
    sizes = {number: rows_of(record, number) for number in numbers}
    known = [size for size in sizes.values() if size is not None]
    if not known or len(known) < len(sizes):
        return None
    usual = most_frequent(known)
    return {number for number, size in sizes.items() if size == usual}


def parents(timeline: list[Row]) -> dict[str, str]:
    """{phase: the phase that it lies inside of}, read from the step with the most phases."""
    steps: dict[int, list[Row]] = {}
    for row in timeline:
        if row["phase"] != "step" and row["replica"] is None:
            steps.setdefault(row["step"], []).append(row)
    if not steps:
        return {}
    rows = max(steps.values(), key=len)
    inside = {}
    for row in rows:
        around = [other for other in rows if other["phase"] != row["phase"] and _contains(other, row)]
        if around:
            inside[row["phase"]] = min(around, key=lambda other: other["end_us"] - other["start_us"])["phase"]
    return inside


def _contains(outer: Row, inner: Row) -> bool:
    longer = outer["end_us"] - outer["start_us"] > inner["end_us"] - inner["start_us"]
    return bool(longer and outer["start_us"] <= inner["start_us"] and inner["end_us"] <= outer["end_us"])


def _ancestors(name: str, inside: dict[str, str]) -> list[str]:
    chain: list[str] = []
    while name in inside and inside[name] not in chain:
        name = inside[name]
        chain.append(name)
    return chain


def _ordered(record: Record, inside: dict[str, str]) -> list[str]:
    """Depth first: a phase, then those inside it, each level by its first start in the timeline."""
    start: dict[str, float] = {}
    for row in record.timeline:
        start.setdefault(row["phase"], row["start_us"])

    def rank(name: str) -> tuple[float, int]:
        return start.get(name, float("inf")), ORDER.index(name) if name in ORDER else len(ORDER)

    def below(parent: str | None) -> list[str]:
        children = [name for name in record.phases if inside.get(name) == parent]
        return [name for child in sorted(children, key=rank) for name in (child, *below(child))]

    return below(None)
