"""Evidence: the facts of a Record that the rules of findings read."""

import statistics
from dataclasses import dataclass, replace
from functools import cached_property

from dpexp.record.figures.phase_times import union_length
from dpexp.record.view import RecordView
from dpexp.report.analysis import estimates
from dpexp.report.analysis.intervals import CONFIDENCE, Interval
from dpexp.report.analysis.trends import Trend, blocks, far_out, trend

ENOUGH = 8
"""Fewer samples do not support a statement about their spread or growth."""
MANY = 6 * ENOUGH
"""Fewer steps do not show a trend."""
SLOWER = 1.2
"""Steps are slower than others from this ratio on."""


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


def _interval(values: list[float]) -> Interval:
    """The mean over blocks of the run with its 95% interval."""
    import numpy as np

    estimate = estimates.mean(np.array(values))
    middle, half = float(estimate.middle), float(estimate.half(CONFIDENCE))
    return Interval(middle, middle - half, middle + half)


class Evidence:
    """A Record, and the facts that several rules read."""

    def __init__(self, view: RecordView) -> None:
        self.view, self.record = view, view.record
        self.phases = {phase.name: phase for phase in view.phases}
        self.step_ms = view.timed_ms  # the median of the phase-timed steps
        self.batches, self.usual, self.devices = view.batches, view.usual, view.devices

    def replicas_ms(self) -> float | None:
        """Median over steps of the time, ms, in which any replica computes; None without replicas."""
        usual = self.view.usual_numbers
        intervals: dict[int, list[tuple[float, float]]] = {}
        for row in self.record.timeline:
            if row["replica"] is not None and (usual is None or row["step"] in usual):
                intervals.setdefault(row["step"], []).append((row["start_us"], row["end_us"]))
        return statistics.median(map(union_length, intervals.values())) / 1000 if intervals else None

    @cached_property
    def ranks_ms(self) -> dict[int, dict[int, float]]:
        """{rank: {step: ms in which the rank itself computes}} of the phase-timed steps."""
        times: dict[int, dict[int, float]] = {
            rank["rank"]: {} for rank in self.record.devices.get("ranks") or []
        }
        for row in self.record.timeline:
            if row["replica"] in times and row["phase"] in ("forward", "backward_compute"):
                of_rank, ms = times[row["replica"]], (row["end_us"] - row["start_us"]) / 1e3
                of_rank[row["step"]] = of_rank.get(row["step"], 0.0) + ms
        return times

    @cached_property
    def slow_start(self) -> int:
        """How many steps before the first usual one are slow; 0 if too few steps follow."""
        times = self.usual.times if self.usual is not None else ()
        if len(times) < 4 * ENOUGH:
            return 0
        later = times[len(times) // 4 :]
        limit = max(far_out(later), SLOWER * statistics.median(later))
        return next((number for number, time in enumerate(times) if time <= limit), 0)

    @cached_property
    def trend(self) -> Trend | None:
        """The trend of the steps after a slow start, if it is large enough to matter."""
        if self.usual is None:
            return None
        times = self.usual.times[self.slow_start :]
        found = trend(times) if len(times) >= MANY else None
        if found is None or 1 / SLOWER < found.ratio < SLOWER:
            return None
        return replace(found, at=found.at and found.at + self.slow_start)

    @cached_property
    def growth(self) -> Growth | None:
        """None without two batch sizes, one at least twice the other, that ran on equally many devices."""
        by_rows = {rows: times for rows, times in self.view.by_rows.items() if len(times) >= ENOUGH}
        few, many = min(by_rows, default=0), max(by_rows, default=0)
        replicas = {len(group.split) for group in self.batches if group.rows in (few, many)}
        if not by_rows or many < 2 * few or len(replicas) > 1:
            return None

        few_ms, many_ms = statistics.median(by_rows[few]), statistics.median(by_rows[many])
        count = min(ENOUGH, len(by_rows[few]) // 2, len(by_rows[many]) // 2)
        pairs = list(zip(blocks(by_rows[many], count), blocks(by_rows[few], count), strict=False))
        slopes = [(large - small) / (many - few) for large, small in pairs]
        fixed = [1 - slope * many / large for slope, (large, _) in zip(slopes, pairs, strict=True)]
        return Growth(few, many, few_ms, many_ms, _interval(slopes), _interval(fixed))
