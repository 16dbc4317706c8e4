"""Stages of a hybrid step, each alone, and how near the step is to the longest of them, as text."""

from collections.abc import Iterator

from dpexp.record import Record
from dpexp.record.phase_times import STAGES
from dpexp.report import units
from dpexp.report.analysis.communication import by_phase


def lines(record: Record) -> list[str]:
    """One line, of a hybrid; none of another layout."""
    figures = record.summary.get("stages")
    if not figures:
        return []
    times = {stage: figures[f"{stage}_ms"] for stage in STAGES if f"{stage}_ms" in figures}
    alone = ", ".join(_texts(record, times))
    longest = max(times, key=lambda stage: times[stage])
    return [
        f"alone: {alone}; a step takes {figures['of_bound']:.2f} times the longest ({longest}), "
        "and overlap cannot bring it below 1"
    ]


def _texts(record: Record, times: dict[str, float]) -> Iterator[str]:
    """``lookup 0.4 ms (5.2 GB/s)`` for each stage; a virtual device needs no copy, which has no rate."""
    moved = by_phase(record).get("transfer", 0)
    for stage, ms in times.items():
        is_copied = stage == "lookup" or (stage == "copy" and record.execution == "real")
        rate = f" ({units.size(round(moved / ms * 1e3))}/s)" if is_copied and moved and ms else ""
        yield f"{stage} {units.ms(ms)}{rate}"
