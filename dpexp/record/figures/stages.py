"""Stages of a hybrid step: in the phase-timed steps they run one after the other.

A pipeline overlaps stages, and a step of it takes at least as long as the longest of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from dpexp.record.figures.step_times import Steps
from dpexp.record.record import Row

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


def stages(phases: Mapping[str, Sequence[float]], usual: Steps | None, work: Row) -> dict[str, float]:
    """``{lookup_ms, copy_ms, …, bound_ms, of_bound, …}`` of a hybrid's phases (ms); empty for other runs.

    ``bound_ms`` is the longest stage, ``of_bound`` the measured step divided by it. ``lookup_share`` and the
    like are rates of stages divided by what the machine gives, where that was measured.
    """
    if usual is None or not {"embedding", "dense"} <= phases.keys():
        return {}
    found = dict[str, float]()
    for stage, names in STAGES.items():
        times = [phases[name] for name in names if name in phases]
        if times and all(times):
            found[f"{stage}_ms"] = sum(map(statistics.median, times))
    bound = max(found.values(), default=0.0)
    if not bound:
        return {}
    shares = _shares(work, found) if work.get("rows") == usual.rows else {}
    return found | {"bound_ms": bound, "of_bound": usual.median / bound} | shares


def _shares(work: Row, times: Mapping[str, float]) -> dict[str, float]:
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
