"""Findings: what the figures of one run say about its layout, each with what to try.

A finding is a function of the view of a run. It returns a text, empty where the run does not show it. Reports
have findings in the order of ``FINDINGS``; docs/layouts.md lists them in the same order.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable

from dpexp.config.words import plural
from dpexp.record.batches import replicated_bytes
from dpexp.record.phases import Phase, union_length
from dpexp.record.view import RecordView
from dpexp.report import units

TINY_MS = 1.0
"""A replica that computes for longer than this is not dominated by Python."""


def findings_of(view: RecordView) -> dict[str, str]:
    """{name: what is found in a run, and what to try}. Nothing is concluded from times that cannot be judged.

    A loop that is watched has no findings: its steps are slower than usual, and it has no options to change.
    """
    if view.record.is_watched:
        return {}
    return {name: text for name, find in FINDINGS.items() if (text := find(view))}


def too_noisy(view: RecordView) -> str:
    """Equal steps take so different times that none of them stands for the others."""
    if view.noise is None:
        return ""
    wall = view.wall_samples_per_s
    rate = f" It computes {units.number(wall)} samples/s by wall clock." if wall else ""
    return (
        f"This run cannot be judged: {units.noise_text(view.noise)}.{rate} Run it again on an otherwise idle "
        "machine, with more --steps and fewer --threads than it has cores; nothing else is concluded from "
        "these times."
    )


def never_applied(view: RecordView) -> str:
    """The run ends while gradients accumulate: the last batches have trained nothing."""
    config, rows = view.record.config, view.record.steps["samples"]
    window = config.get("accumulate", 1)
    left = len(rows) % window
    if view.record.status != "finished" or config.get("eval") or not left:
        return ""
    return (
        f"The last {plural(left, 'batch')} of {len(rows)} trained nothing: an update needs {window} "
        f"(--accumulate). End with a full window, as --steps {len(rows) - left} or "
        f"{len(rows) - left + window}."
    )


def copied_parameters(view: RecordView) -> str:
    """Copying the parameters to the replicas in every forward takes more than 10% of a step."""
    phases, moved = _phases(view), replicated_bytes(view.record)
    phase = phases.get("replicate")
    if phase is None or phase.share <= 0.10 or not moved:
        return ""
    targets = len({device for row in view.record.device_map for device in row["replicas"]})
    computing = phases.get("parallel_apply")
    against = f", against {units.ms(computing.median)} of parallel_apply" if computing else ""
    return (
        f"replicate takes {units.percent(phase.share)} of a step ({units.ms(phase.median)}): every forward "
        f"copies {units.size(moved)} of parameters and buffers to {plural(targets, 'device')}{against}. "
        "Choose a larger --batch-size, wrap a smaller block, or run one process per device: "
        "DistributedDataParallel copies nothing."
    )


def overhead(view: RecordView) -> str:
    """Copies, threads, Python and launching kernels take longer than the kernels of replicas."""
    phases = {name: phase.median for name, phase in _phases(view).items()}
    copies = sum(phases.get(name, 0.0) for name in ("scatter", "replicate", "gather"))
    calls, computing = phases.get("parallel_apply"), _replicas_ms(view)
    if calls is None or computing is None:
        return ""
    forward = phases.get("forward", copies + calls)
    if computing >= min(TINY_MS, forward / 2):
        return ""
    rest = max(0.0, forward - computing - copies)
    return (
        f"Replicas compute during {units.ms(computing)} of the forward's {units.ms(forward)}; scatter, "
        f"replicate and gather take {units.ms(copies)}, and in the other {units.ms(rest)} threads start, "
        "wait or are held up. Give each device more to do, by a larger --batch-size or a larger model, or "
        "use one device. --profile shows what fills the gaps."
    )


def _replicas_ms(view: RecordView) -> float | None:
    """Median over steps of the time, ms, in which any replica computes; None without replicas."""
    usual, spans = view.usual_numbers, defaultdict(list)
    for row in view.record.timeline:
        if row["replica"] is not None and (usual is None or row["step"] in usual):
            spans[row["step"]].append((row["start_us"], row["end_us"]))
    return statistics.median(map(union_length, spans.values())) / 1000 if spans else None


def idle_devices(view: RecordView) -> str:
    """Some batch has too few rows for all devices."""
    count = len(view.devices)
    short = [group for group in view.batches if 0 < len(group.split) < count]
    if not short:
        return ""
    every = len(short) == len(view.batches)
    group = short[0] if every else min(short, key=lambda group: len(group.split))
    which = "Every batch" if every else "The last batch of an epoch"
    return (
        f"{which} ({plural(group.rows, 'row')}) runs on {len(group.split)} of {plural(count, 'device')}: "
        f"{count - len(group.split)} idle meanwhile. Choose a --batch-size that gives rows to all of them."
    )


def _phases(view: RecordView) -> dict[str, Phase]:
    """{name: phase} of those whose times are close enough together for their median; empty without any."""
    is_judged = view.usual is not None and view.noise is None
    return {phase.name: phase for phase in view.phases if is_judged and phase.iqr <= phase.median}


FINDINGS: dict[str, Callable[[RecordView], str]] = {
    "cannot be judged": too_noisy,
    "gradients never applied": never_applied,
    "copying parameters": copied_parameters,
    "mostly overhead": overhead,
    "idle devices": idle_devices,
}
"""The name is for a verdict in one line."""
