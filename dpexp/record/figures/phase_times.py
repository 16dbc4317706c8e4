"""Phase times: the times of phases in the phase-timed steps of the usual batch size, and what they bound.

Each stage of a hybrid step runs alone in these steps, one after the other. A pipeline overlaps stages, and a
step of it takes at least as long as the longest of them.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from dpexp.record.figures.step_times import usual_steps

if TYPE_CHECKING:
    from dpexp.record.record import Record

STAGES = {
    "lookup": ("embedding",),
    "copy": ("transfer",),
    "dense": ("dense", "loss", "backward"),
    "update": ("optimizer",),
}
"""The stages of a hybrid step, by the phases in them."""
LIMITS = {
    "lookup": ("memory", "bytes_per_s"),
    "copy": ("link", "bytes_per_s"),
    "dense": ("peak", "flops_per_s"),
}
"""What limits a stage: the key of its measurement in ``work``, and of the rates in that."""


def stage_figures(record: Record) -> dict[str, Any]:
    """``{"stages": {lookup_ms, copy_ms, …, bound_ms, of_bound, …}}`` of a hybrid; empty for other runs.

    ``bound_ms`` is the longest stage, ``of_bound`` the measured step divided by it. ``lookup_share`` and the
    like are rates of stages divided by what the machine gives, where that was measured.
    """
    usual, found = usual_steps(record), dict[str, float]()
    if usual is None or not {"embedding", "dense"} <= record.phases.keys():
        return {}
    for stage, names in STAGES.items():
        times = [samples(record, name) for name in names if name in record.phases]
        if times and all(times):
            found[f"{stage}_ms"] = sum(map(statistics.median, times))
    bound = max(found.values(), default=0.0)
    if not bound:
        return {}
    shares = _shares(record.work, found) if record.work.get("rows") == usual.rows else {}
    return {"stages": found | {"bound_ms": bound, "of_bound": usual.median / bound} | shares}


def _shares(work: dict[str, Any], times: dict[str, float]) -> dict[str, float]:
    """The bytes/s or FLOP/s of each stage, divided by the most that was measured of what limits it."""
    amounts = {stage: work[name].get("bytes", 0) for stage, (name, _) in LIMITS.items() if name in work}
    if "dense" in amounts:
        amounts["dense"] = sum(work.get("flops", {}).values()) / work["peak"]["devices"]
    most = {stage: work[LIMITS[stage][0]][LIMITS[stage][1]]["max"] for stage in amounts}
    return {
        f"{stage}_share": amount / (times[f"{stage}_ms"] / 1000) / most[stage]
        for stage, amount in amounts.items()
        if amount and most[stage] > 0 and times.get(f"{stage}_ms")
    }


def samples(record: Record, name: str) -> list[float]:
    """Times in ms of a phase in the steps of the usual batch size; in all steps where sizes are unknown."""
    usual, times = usual_numbers(record), record.phases[name]
    count = sum(row["phase"] == "step" for row in record.timeline)
    if usual is None or count != len(times):
        return [ms for ms in times if ms is not None]
    return [ms for number, ms in enumerate(times) if number in usual and ms is not None]


def step_samples(record: Record) -> list[float]:
    """Times in ms of the phase-timed steps of the usual batch size."""
    usual = usual_numbers(record)
    return [
        (row["end_us"] - row["start_us"]) / 1000
        for row in record.timeline
        if row["phase"] == "step" and (usual is None or row["step"] in usual)
    ]


def step_ms(record: Record) -> float:
    """Median time in ms of those steps; 0 without steps."""
    return statistics.median(step_samples(record) or [0.0])


def rows_of(record: Record, step: int) -> int | None:
    """Rows of the batch of a phase-timed step; phase-timed steps start at the first batch of an epoch."""
    total, size = record.data.get("samples"), record.config.get("batch_size")
    if not total or not size or min(total, size) < 1:
        return None
    return int(min(size, total - size * (step % -(-total // size))))


def usual_numbers(record: Record) -> set[int] | None:
    """The phase-timed steps whose batch has the most frequent size; None where sizes are unknown."""
    numbers = {row["step"] for row in record.timeline if row["phase"] == "step"}
    sizes = {number: rows for number in numbers if (rows := rows_of(record, number)) is not None}
    usual = max(statistics.multimode(sizes.values()), default=None)
    return {number for number, rows in sizes.items() if rows == usual} or None
