"""Findings on how work and memory are spread over the devices."""

from __future__ import annotations

import statistics

from dpexp.report import units
from dpexp.report.findings.evidence import Evidence, Finding

UNBALANCED = 1.3
LEAST_BYTES = 1_000_000
"""Differences in memory below this are the allocator's, not the layout's."""


def passed_through(evidence: Evidence) -> Finding | None:
    """The wrapper did nothing: it had no device to split over."""
    record = evidence.record
    if record.execution != "passthrough":
        return None
    rows = f", all {evidence.usual.rows} rows of a batch at once" if evidence.usual else ""
    return Finding(
        "passed_through",
        f"The wrapper passed through: there was no accelerator to split over, so '{record.strategy}' called "
        "the "
        f"model itself{rows}.",
        "Emulate devices on the CPU to see replicas, say --virtual 2.",
        {"devices": float(len(evidence.devices))},
    )


def idle_devices(evidence: Evidence) -> Finding | None:
    """Some batch has too few rows for every device."""
    count = len(evidence.devices)
    short = [group for group in evidence.batches if 0 < len(group.split) < count]
    if not short:
        return None
    every = len(short) == len(evidence.batches)
    group = short[0] if every else min(short, key=lambda one: len(one.split))
    idle = count - len(group.split)
    which = "Every batch" if every else "The last batch of an epoch"
    return Finding(
        "idle_devices",
        f"{which} ({group.rows} rows) runs on {len(group.split)} of {count} devices: {idle} "
        f"idle{'s' if idle == 1 else ''} meanwhile.",
        f"{_fills(group.rows, count)} rows would use all {count}: choose a --batch-size "
        + ("from there on." if every else "that leaves at least so many at the end, or none."),
        {"rows": float(group.rows), "idle": float(idle), "devices": float(count)},
    )


def _fills(rows: int, count: int) -> int:
    """The fewest rows, from ``rows`` on, that ``tensor.chunk(count)`` cuts into ``count`` pieces."""
    while -(-rows // -(-rows // count)) < count:
        rows += 1
    return rows


def output_memory(evidence: Evidence) -> Finding | None:
    """The device where outputs are gathered needs more memory than the others."""
    memory, output = evidence.record.memory, evidence.record.devices["output"]
    others = [count for device, count in memory.items() if device not in ("cpu", output)]
    if output not in memory or output == "cpu" or not others:
        return None
    usual = statistics.median(others)
    if memory[output] < UNBALANCED * usual or memory[output] - usual < LEAST_BYTES:
        return None
    return Finding(
        "output_memory",
        f"Memory is unbalanced towards the output device: {output} peaks at {units.size(memory[output])}, "
        "the others "
        f"at {units.size(usual)} ({units.ratio(memory[output] / usual) if usual else 'none'}).",
        "Compute the loss inside the model, so that one number a replica is gathered instead of its outputs; "
        "DistributedDataParallel gathers nothing.",
        {"output_bytes": float(memory[output]), "other_bytes": float(usual)},
    )
