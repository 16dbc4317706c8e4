"""Stages of a hybrid step: how near each is to what the machine gives, and the step to the longest."""

from dpexp.record.figures.stages import LIMITS, STAGES
from dpexp.record.view import RecordView
from dpexp.report import units


def stage_lines(view: RecordView) -> list[str]:
    """One line, of a hybrid; none of another layout."""
    figures, config = view.stages, view.record.config
    if not figures:
        return []
    times = {stage: figures[f"{stage}_ms"] for stage in STAGES if f"{stage}_ms" in figures}
    stages = ", ".join(
        f"{_name(view, stage)} {units.ms(ms)}{_rate(view, stage, ms)}" for stage, ms in times.items()
    )
    longest = max(times, key=lambda stage: times[stage])
    step = f"a step takes {figures['of_bound']:.2f} times the longest ({_name(view, longest)})"
    if config.get("pipeline") and config.get("shard_embedding"):
        return [f"alone: {stages}; {step}; ahead, all tables share the exchanges that each has alone"]
    return [f"alone: {stages}; {step}, and overlap cannot bring it below 1"]


def _name(view: RecordView, stage: str) -> str:
    """``lookup``, or ``dense + loss + backward``: a stage of several phases is not the first of them."""
    phases = [name for name in STAGES[stage] if name in view.phase_samples]
    return " + ".join(phases) if len(phases) > 1 else stage


def _rate(view: RecordView, stage: str, ms: float) -> str:
    """`` (62% of what memory gives, 9.8 GB/s)`` where that was measured, else the rate of lookup or copy.

    A virtual device needs no copy, which has no rate.
    """
    share = view.stages.get(f"{stage}_share")
    if share is not None:
        limit, key = LIMITS[stage]
        most = view.record.work[limit][key]["max"]
        rate = f"{units.flop(most) if stage == 'dense' else units.size(round(most))}/s"
        name = {"lookup": "memory", "copy": "the link", "dense": "the device"}[stage]
        if stage == "lookup" and share > 1:
            return f" (more than the {rate} of the probe: caches have the rows, or it was disturbed)"
        return f" ({units.percent(share)} of what {name} gives, {rate})"
    moved = view.bytes_by_phase.get("transfer", 0)
    is_copied = stage == "lookup" or (stage == "copy" and view.record.execution == "real")
    return f" ({units.size(round(moved / ms * 1e3))}/s)" if is_copied and moved and ms else ""
