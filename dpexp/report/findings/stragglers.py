"""Findings on ranks: processes that wait for each other at every all-reduce."""

from __future__ import annotations

import statistics

from dpexp.report import units
from dpexp.report.findings.evidence import Evidence, Finding

SLOWER = 1.3
LEAST_MS = 0.5
"""Differences below this are the scheduler's, not the rank's."""

COMPUTES = ("forward", "backward_compute")
EXPOSED = 0.25


def straggler(evidence: Evidence) -> Finding | None:
    """One rank computes longer than the others, which then wait for it."""
    ranks = evidence.record.devices.get("ranks") or []
    times = {each["rank"]: _compute_ms(evidence, each["rank"]) for each in ranks}
    if len(times) < 2 or not all(times.values()):
        return None
    slowest = max(times, key=lambda rank: times[rank])
    others = statistics.median(ms for rank, ms in times.items() if rank != slowest)
    lost = times[slowest] - others
    if times[slowest] < SLOWER * others or lost < LEAST_MS:
        return None
    which = next(each for each in ranks if each["rank"] == slowest)
    return Finding(
        "straggler",
        f"Rank {slowest} ({which['device']} on host {which['host']}) is the straggler: its forward and "
        f"backward take {units.ms(times[slowest])}, the others' {units.ms(others)} (medians), and all wait.",
        "See what else runs there, and whether its device and threads are the others' equals; fewer rows for "
        "it need a rank less.",
        {"rank": float(slowest), "rank_ms": times[slowest], "others_ms": others},
    )


def _compute_ms(evidence: Evidence, rank: int) -> float:
    """Median over steps of the time, ms, in which the rank itself computes; 0 where it is not known."""
    by_step: dict[int, float] = {}
    for row in evidence.record.timeline:
        if row["replica"] == rank and row["phase"] in COMPUTES:
            by_step[row["step"]] = by_step.get(row["step"], 0.0) + (row["end_us"] - row["start_us"]) / 1e3
    return statistics.median(by_step.values()) if by_step else 0.0


def exposed_allreduce(evidence: Evidence) -> Finding | None:
    """The all-reduce goes on long after backward has computed all gradients."""
    phases, whole = evidence.phases, evidence.step_ms
    if not {"allreduce", "overlap"} <= set(phases) or not whole:
        return None
    exposed = max(0.0, phases["allreduce"].median - phases["overlap"].median)
    if exposed < EXPOSED * whole or exposed < LEAST_MS:
        return None
    sent = sum(row["bytes"] for row in evidence.record.device_map if row["kind"] == "parameter")
    return Finding(
        "exposed_allreduce",
        f"The all-reduce of {units.size(sent)} of gradients is not hidden by backward: "
        f"{units.ms(exposed)} of a step ({units.percent(exposed / whole)}) is spent on it alone.",
        "A larger --batch-size computes more for the same gradients; a smaller --bucket-mb begins earlier.",
        {"exposed_ms": exposed, "share": exposed / whole, "bytes": float(sent)},
    )
