"""Work figures: memory by category, FLOP/s and rates of a run, from what one observed step had and computed.

docs/definitions.md says what each figure is. A figure that is not known is absent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpexp.record.step_times import usual_steps

if TYPE_CHECKING:
    from dpexp.record.record import Record

CATEGORIES = ("parameters", "buffers", "gradients", "optimizer", "activations", "peak", "reserved")
"""The figures of a row of ``memory_use``, in bytes."""


def work_figures(record: Record) -> dict[str, Any]:
    """Keys of a summary: ``memory_bytes`` (the most of a device), ``flops`` of a step, ``flops_per_s``."""
    found: dict[str, Any] = {}
    if record.memory_use:
        by_category = {key: [row[key] for row in record.memory_use if key in row] for key in CATEGORIES}
        found["memory_bytes"] = {key: max(sizes) for key, sizes in by_category.items() if sizes}
    flops, usual = record.work.get("flops"), usual_steps(record)
    if flops and any(flops.values()):
        found["flops"] = dict(flops)
        if usual is not None and usual.median and record.work.get("rows") == usual.rows:
            found["flops_per_s"] = 1000 * sum(flops.values()) / usual.median
    return found
