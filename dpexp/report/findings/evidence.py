"""Evidence: the facts of a Record that the rules of findings read."""

import statistics
from dataclasses import dataclass, replace
from functools import cached_property

from dpexp.record.figures.noise import SLOWER
from dpexp.record.figures.phase_times import union_length
from dpexp.record.profiler_trace import PROFILER_TRACE, trace_of
from dpexp.record.view import RecordView
from dpexp.report.analysis import estimates
from dpexp.report.analysis.intervals import CONFIDENCE, Interval
from dpexp.report.analysis.trends import Trend, blocks, trend

ENOUGH = 8
"""Fewer samples do not support a statement about their spread or growth."""
MANY = 6 * ENOUGH
"""Fewer steps do not show a trend."""


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
    """A Record, and the facts that several rules read.

    Of times that cannot be judged there are none: ``usual``, ``timed`` (the phase-timed steps), ``phases``,
    ``step_ms`` (their median) and what follows from them are empty, so that no rule finds anything in noise.
    """

    def __init__(self, view: RecordView) -> None:
        self.view, self.record = view, view.record
        self.batches, self.devices = view.batches, view.devices
        self.usual = view.usual if view.noise is None else None
        self.are_phases_judged = view.noise is None and view.phase_noise is None
        self.timed = view.timed_steps if self.are_phases_judged else []
        self.step_ms = statistics.median(self.timed or [0.0])
        phases = view.phases if self.are_phases_judged else []
        self.phases = {phase.name: phase for phase in phases if phase.iqr <= phase.median}

    @property
    def how_to_see(self) -> str:
        """How to see what no phase and no replica explains."""
        what = "--profile" if trace_of(self.record) is None else PROFILER_TRACE
        return f"timeline.html shows the gaps, and {what} what fills them"

    def replicas_ms(self) -> float | None:
        """Median over steps of the time, ms, in which any replica computes; None without replicas."""
        if not self.are_phases_judged:
            return None
        usual = self.view.usual_numbers
        intervals: dict[int, list[tuple[float, float]]] = {}
        for row in self.record.timeline:
            if row["replica"] is not None and (usual is None or row["step"] in usual):
                intervals.setdefault(row["step"], []).append((row["start_us"], row["end_us"]))
        return statistics.median(map(union_length, intervals.values())) / 1000 if intervals else None

    @cached_property
    def ranks_ms(self) -> dict[int, dict[int, float]]:
        """{rank: {step: ms in which the rank itself computes}} of the phase-timed steps."""
        if not self.are_phases_judged:
            return {}
        times: dict[int, dict[int, float]] = {
            rank["rank"]: {} for rank in self.record.devices.get("ranks") or []
        }
        for row in self.record.timeline:
            if row["replica"] in times and row["phase"] in ("forward", "backward_compute"):
                of_rank, ms = times[row["replica"]], (row["end_us"] - row["start_us"]) / 1e3
                of_rank[row["step"]] = of_rank.get(row["step"], 0.0) + ms
        return times

    @cached_property
    def trend(self) -> Trend | None:
        """The trend of the steps after a slow start, if it is large enough to matter, also of a noisy run."""
        start = self.view.slow_start
        times = self.view.usual_times[start:]
        found = trend(times) if len(times) >= MANY else None
        if found is None or 1 / SLOWER < found.ratio < SLOWER:
            return None
        return replace(found, at=found.at and found.at + start)

    @cached_property
    def growth(self) -> Growth | None:
        """None without two batch sizes, one at least twice the other, that ran on equally many devices."""
        if self.usual is None:
            return None
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
