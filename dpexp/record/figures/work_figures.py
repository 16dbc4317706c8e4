"""Work figures: memory by category, FLOP/s and rates of a run, from what one observed step had and computed.

docs/definitions.md says what each figure is. A figure that is not known is absent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpexp.record.figures.step_times import usual_steps

if TYPE_CHECKING:
    from dpexp.record.record import Record

CATEGORIES = ("parameters", "buffers", "gradients", "optimizer", "activations", "peak", "reserved")
"""The figures of a row of ``memory_use``, in bytes."""


def work_figures(record: Record) -> dict[str, Any]:
    """Keys of a summary: ``memory_bytes`` (the most of a device), ``flops`` of a step, and rates."""
    found: dict[str, Any] = {}
    if record.memory_use:
        by_category = {key: [row[key] for row in record.memory_use if key in row] for key in CATEGORIES}
        found["memory_bytes"] = {key: max(sizes) for key, sizes in by_category.items() if sizes}
    work, usual = record.work, usual_steps(record)
    if flops := {name: count for name, count in work.get("flops", {}).items() if count}:
        found["flops"] = flops
    if usual is not None and usual.median and work.get("rows") == usual.rows:
        found |= _rates(work, sum(flops.values()), usual.median / 1000)
    if (energy := work.get("energy")) and energy["steps"]:
        found["joules_per_step"] = sum(energy["joules"].values()) / energy["steps"]
    return found


def _rates(work: dict[str, Any], flops: int, step_s: float) -> dict[str, float]:
    rates = {"flops_per_s": flops / step_s} if flops else {}
    if work.get("tokens"):
        rates["tokens_per_s"] = work["tokens"] / step_s
    if rates and (peak := work.get("peak")):
        rates["peak_share"] = flops / step_s / (peak["flops_per_s"]["max"] * peak["devices"])
    return rates
