"""Work: memory by category, FLOPs and rates of a run, from what one observed step had and computed.

docs/definitions.md says what each figure is. A figure that is not known is None, or absent from a dict.
"""

from __future__ import annotations

from collections.abc import Iterable

from dpexp.record.figures.step_times import Steps
from dpexp.record.record import Row

CATEGORIES = ("parameters", "buffers", "gradients", "optimizer", "activations", "peak", "reserved")
"""The figures of a row of ``memory_use``, in bytes."""


def memory_bytes(memory_use: Iterable[Row]) -> dict[str, int]:
    """{category: bytes of the device that has most of it}."""
    rows = list(memory_use)
    by_category = {key: [row[key] for row in rows if key in row] for key in CATEGORIES}
    return {key: max(sizes) for key, sizes in by_category.items() if sizes}


def flops(work: Row) -> dict[str, int]:
    """{forward or backward: the floating-point operations of a step}, without zeros."""
    return {name: count for name, count in work.get("flops", {}).items() if count}


def per_second(work: Row, amount: float, usual: Steps | None) -> float | None:
    """The amount of the observed step divided by the step time; None for a step of other batches."""
    is_same = usual is not None and usual.median and work.get("rows") == usual.rows
    return float(amount / (usual.median / 1000)) if amount and usual is not None and is_same else None


def peak_share(work: Row, flops_per_s: float | None) -> float | None:
    """The FLOP/s as a share of the machine's peak."""
    peak = work.get("peak")
    if flops_per_s is None or not peak:
        return None
    return flops_per_s / (float(peak["flops_per_s"]["max"]) * int(peak["devices"]))


def joules_per_step(work: Row) -> float | None:
    """Energy of the measured steps, all that runs there included, divided by their number."""
    energy = work.get("energy")
    if not energy or not energy["steps"]:
        return None
    return float(sum(energy["joules"].values())) / int(energy["steps"])
