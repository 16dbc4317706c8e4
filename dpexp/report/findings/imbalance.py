"""Findings on work, time and memory that are spread unevenly over devices and ranks."""

import statistics

from dpexp.config.ranges import plural
from dpexp.report import units
from dpexp.report.findings.evidence import Evidence
from dpexp.report.findings.rules import Finding, rule

UNBALANCED = 1.3
"""A device's memory or a rank's time is unbalanced from this many times the others' median."""
LEAST_BYTES = 1_000_000
"""Smaller differences in memory come from the allocator, not from the layout."""
LEAST_MS = 0.5
"""Smaller differences in time come from the scheduler, not from the rank."""


@rule(place=10, headline="no device to split over")
def passed_through(evidence: Evidence) -> Finding | None:
    """The wrapper did nothing: it had no device to split over."""
    record = evidence.record
    if record.execution != "passthrough":
        return None
    usual = evidence.view.usual
    rows = f", all {plural(usual.rows, 'row')} of a batch at once" if usual else ""
    return Finding(
        "The wrapper passed through: there was no accelerator to split over, so "
        f"'{record.strategy}' called the model itself{rows}.",
        "Emulate devices on the CPU to see replicas, for example --virtual 2.",
        {"devices": float(len(evidence.devices))},
    )


@rule(place=60, headline="idle devices")
def idle_devices(evidence: Evidence) -> Finding | None:
    """Some batch has too few rows for all devices."""
    count = len(evidence.devices)
    short = [group for group in evidence.batches if 0 < len(group.split) < count]
    if not short:
        return None
    every = len(short) == len(evidence.batches)
    group = short[0] if every else min(short, key=lambda group: len(group.split))
    idle = count - len(group.split)
    which = "Every batch" if every else "The last batch of an epoch"
    choice = "of at least that." if every else "that leaves at least that many at the end, or none."
    return Finding(
        f"{which} ({plural(group.rows, 'row')}) runs on {len(group.split)} of {plural(count, 'device')}: "
        f"{idle} idle{'s' if idle == 1 else ''} meanwhile.",
        f"{_rows_for_all(group.rows, count)} rows would use all {count}: choose a --batch-size {choice}",
        {"rows": float(group.rows), "idle": float(idle), "devices": float(count)},
    )


def _rows_for_all(rows: int, count: int) -> int:
    """The fewest rows, from ``rows`` on, that ``tensor.chunk(count)`` cuts into ``count`` pieces."""
    rows = max(1, rows)
    while -(-rows // -(-rows // count)) < count:
        rows += 1
    return rows


@rule(place=70, headline="a straggler")
def straggler(evidence: Evidence) -> Finding | None:
    """One rank computes longer than the others, which wait for it at every all-reduce."""
    ranks = {rank["rank"]: rank for rank in evidence.record.devices.get("ranks") or []}
    times = {rank: statistics.median(steps.values() or [0]) for rank, steps in evidence.ranks_ms.items()}
    if len(times) < 2 or not all(times.values()):
        return None
    slowest = max(times, key=lambda rank: times[rank])
    others = statistics.median(ms for rank, ms in times.items() if rank != slowest)
    if times[slowest] < UNBALANCED * others or times[slowest] - others < LEAST_MS:
        return None
    device, host = ranks[slowest]["device"], ranks[slowest]["host"]
    return Finding(
        f"Rank {slowest} ({device} on host {host}) is the straggler: its forward and backward take "
        f"{units.ms(times[slowest])}, the others' {units.ms(others)} (medians), and all wait for it.",
        "See what else runs on that host, and whether its device and threads equal those of the others; "
        "otherwise run without it.",
        {"rank": float(slowest), "rank_ms": times[slowest], "others_ms": others},
    )


@rule(place=90, headline="memory of the output device")
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
        f"Memory is unbalanced towards the output device: {output} peaks at {units.size(memory[output])}, "
        f"the others at {units.size(usual)} ({units.ratio(memory[output] / usual) if usual else 'none'}).",
        "Compute the loss inside the model, so that each replica returns one number instead of its outputs; "
        "DistributedDataParallel gathers nothing.",
        {"output_bytes": float(memory[output]), "other_bytes": float(usual)},
    )
