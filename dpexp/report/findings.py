"""Findings: what the figures of one run say about its layout, each with what to try.

A finding is a function with one decorator, which has its name and what it needs of a run::

    @finding("long warm-up", needs="steps")
    def long_warm_up(view: RecordView) -> Found:
        '''What it finds, in a sentence.'''

Reports have findings in the order of this file; docs/layouts.md lists them in the same order.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dpexp.config.words import plural
from dpexp.record.batches import replicated_bytes
from dpexp.record.files import PROFILE_TRACE
from dpexp.record.phases import Phase, union_length
from dpexp.record.record import Record
from dpexp.record.view import RecordView
from dpexp.report import units

Needs = Literal["record", "steps", "phases"]
"""What a finding needs: nothing but the Record, or step times or phase times that can be judged."""
Found = tuple[str, str] | None
"""What was found, with its numbers, and what to try; None where the run does not show it."""

TINY_MS = 1.0
"""A replica that computes for longer than this is not dominated by Python."""
LEAST_MS = 0.5
"""Smaller differences come from the scheduler, not from the layout."""


@dataclass(frozen=True)
class Finding:
    """``name`` is for a verdict in one line, ``text`` states what was found, ``advice`` what to try."""

    name: str
    text: str
    advice: str


Find = Callable[[RecordView], Found]
FINDINGS: dict[str, tuple[Needs, Find]] = {}
"""{name: (what it needs, its function)}"""


def finding(name: str, needs: Needs = "record") -> Callable[[Find], Find]:
    """Register a function as a finding."""

    def register(find: Find) -> Find:
        FINDINGS[name] = (needs, find)
        return find

    return register


def findings_of(record: Record | RecordView) -> list[Finding]:
    """What is found in a run. Nothing is concluded from times that cannot be judged.

    A loop that is watched has no findings: its steps are slower than usual, and it has no options to change.
    """
    view = RecordView.of(record)
    if view.record.is_watched:
        return []
    is_judged = view.usual is not None and view.noise is None
    has: dict[Needs, bool] = {
        "record": True,
        "steps": is_judged,
        "phases": is_judged and view.phase_noise is None and bool(view.spans),
    }
    return [
        Finding(name, *found)
        for name, (needs, find) in FINDINGS.items()
        if has[needs] and (found := find(view)) is not None
    ]


@finding("cannot be judged")
def too_noisy(view: RecordView) -> Found:
    """Equal steps take so different times that none of them stands for the others."""
    if view.noise is None:
        return None
    wall = view.wall_samples_per_s
    rate = f" It computes {units.number(wall)} samples/s by wall clock." if wall else ""
    return (
        f"This run cannot be judged: {units.noise_text(view.noise)}.{rate}",
        "Run it again on an otherwise idle machine, with more --steps and fewer --threads than it has cores; "
        "nothing else is concluded from these times.",
    )


@finding("no device to split over")
def passed_through(view: RecordView) -> Found:
    """The wrapper did nothing: it had no device to split over."""
    record, usual = view.record, view.usual
    if record.execution != "passthrough":
        return None
    rows = f", all {plural(usual.rows, 'row')} of a batch at once" if usual else ""
    return (
        "The wrapper passed through: there was no accelerator to split over, so "
        f"'{record.strategy}' called the model itself{rows}.",
        "Emulate devices on the CPU to see replicas, for example --virtual 2.",
    )


@finding("gradients never applied")
def never_applied(view: RecordView) -> Found:
    """The run ends while gradients accumulate: the last batches have trained nothing."""
    config, rows = view.record.config, view.record.steps["samples"]
    window = config.get("accumulate", 1)
    left = len(rows) % window
    if view.record.status != "finished" or config.get("eval") or not left:
        return None
    uneven = sorted(set(rows))
    alike = f", and one of {uneven[0]} rows counts as much as one of {uneven[-1]}" if uneven[1:] else ""
    return (
        f"The last {plural(left, 'batch')} of {len(rows)} trained nothing: an update needs {window} "
        f"(--accumulate){alike}.",
        f"End with a full window, as --steps {len(rows) - left} or {len(rows) - left + window}.",
    )


@finding("no rows split")
def same_rows(view: RecordView) -> Found:
    """No dimension of the mesh splits rows: every rank computes the same."""
    parts = view.batches[0].same_rows if view.batches else ()
    if len(parts) != 1:
        return None
    return (
        f"The mesh {view.record.config['mesh']} splits no rows: each of {plural(len(parts[0]), 'rank')} "
        "computes all rows of a batch, as in tensor parallelism.",
        "Give the dimension along which ranks share the rows a name that begins with dp, as dp_shard.",
    )


@finding("copying parameters", needs="phases")
def replicate(view: RecordView) -> Found:
    """Copying the parameters to the replicas in every forward takes more than 10% of a step."""
    phases, moved = _phases(view), replicated_bytes(view.record)
    phase = phases.get("replicate")
    if phase is None or phase.share <= 0.10 or not moved:
        return None
    targets = len({device for row in view.record.device_map for device in row["replicas"]})
    computing = phases.get("parallel_apply")
    against = f", against {units.ms(computing.median)} of parallel_apply" if computing else ""
    return (
        f"replicate takes {units.percent(phase.share)} of a step ({units.ms(phase.median)}): every forward "
        f"copies {units.size(moved)} of parameters and buffers to {plural(targets, 'device')}{against}.",
        "Choose a larger --batch-size, wrap a smaller block, or run one process per device: "
        "DistributedDataParallel copies nothing.",
    )


@finding("mostly overhead", needs="phases")
def overhead(view: RecordView) -> Found:
    """Copies, threads, Python and launching kernels take longer than the kernels of replicas."""
    phases = {name: phase.median for name, phase in _phases(view).items()}
    copies = sum(phases.get(name, 0.0) for name in ("scatter", "replicate", "gather"))
    calls, computing = phases.get("parallel_apply"), _replicas_ms(view)
    if calls is None or computing is None:
        return None
    forward = phases.get("forward", copies + calls)
    if computing >= min(TINY_MS, forward / 2):
        return None
    rest = max(0.0, forward - computing - copies)
    return (
        f"Replicas compute during {units.ms(computing)} of the forward's {units.ms(forward)}; scatter, "
        f"replicate and gather take {units.ms(copies)}, and in the other {units.ms(rest)} threads start, "
        "wait or are held up.",
        "Give each device more to do, by a larger --batch-size or a larger model, or use one device."
        + _gaps(view.record),
    )


def _gaps(record: Record) -> str:
    """Where the time between computing is seen: ``timeline.html`` is made for MLflow."""
    in_mlflow = " timeline.html in MLflow shows the gaps." if record.is_tracked else ""
    has_profile = "steps" in record.work.get("profile", {})
    return f"{in_mlflow} {PROFILE_TRACE if has_profile else '--profile'} shows what fills them."


def _replicas_ms(view: RecordView) -> float | None:
    """Median over steps of the time, ms, in which any replica computes; None without replicas."""
    usual, spans = view.usual_numbers, defaultdict(list)
    for row in view.record.timeline:
        if row["replica"] is not None and (usual is None or row["step"] in usual):
            spans[row["step"]].append((row["start_us"], row["end_us"]))
    return statistics.median(map(union_length, spans.values())) / 1000 if spans else None


@finding("idle devices")
def idle_devices(view: RecordView) -> Found:
    """Some batch has too few rows for all devices."""
    count = len(view.devices)
    short = [group for group in view.batches if 0 < len(group.split) < count]
    if not short:
        return None
    every = len(short) == len(view.batches)
    group = short[0] if every else min(short, key=lambda group: len(group.split))
    idle = count - len(group.split)
    which = "Every batch" if every else "The last batch of an epoch"
    choice = "of at least that." if every else "that leaves at least that many at the end, or none."
    return (
        f"{which} ({plural(group.rows, 'row')}) runs on {len(group.split)} of {plural(count, 'device')}: "
        f"{idle} idle{'s' if idle == 1 else ''} meanwhile.",
        f"{_rows_for_all(group.rows, count)} rows would use all {count}: choose a --batch-size {choice}",
    )


def _rows_for_all(rows: int, count: int) -> int:
    """The fewest rows, from ``rows`` on, that ``tensor.chunk(count)`` cuts into ``count`` pieces."""
    rows = max(1, rows)
    while -(-rows // -(-rows // count)) < count:
        rows += 1
    return rows


@finding("all-reduce that nothing overlaps", needs="phases")
def exposed_allreduce(view: RecordView) -> Found:
    """The all-reduce continues for a quarter of a step after backward has computed all gradients."""
    phases, step_ms = _phases(view), view.timed_ms
    if not {"allreduce", "overlap"} <= phases.keys():
        return None
    exposed = phases["allreduce"].median - phases["overlap"].median
    if exposed < max(LEAST_MS, 0.25 * step_ms):
        return None
    sent = sum(row["bytes"] for row in view.record.device_map if row["kind"] == "parameter")
    return (
        f"Backward does not hide the all-reduce of {units.size(sent)} of gradients: {units.ms(exposed)} of a "
        f"step ({units.percent(exposed / step_ms)}) is spent on it alone.",
        "A larger --batch-size computes more for the same gradients; a smaller --bucket-mb starts earlier.",
    )


@finding("unsteady steps", needs="steps")
def unsteady(view: RecordView) -> Found:
    """The first steps are slow, or a few interrupt the others: the median leaves them out."""
    return _slow_start(view) or _interruptions(view)


def _slow_start(view: RecordView) -> Found:
    times, count = view.usual_times, view.slow_start
    if count < 2:
        return None
    first, rest = statistics.median(times[:count]), statistics.median(times[count:])
    warmup = view.record.config.get("warmup", 0)
    return (
        f"The first {count} steps take {units.ratio(first / rest)} as long as the {len(times) - count} after "
        f"them ({units.ms(first)} against {units.ms(rest)}).",
        f"Warm up longer: --warmup {max(2 * warmup, warmup + 4 * count)}.",
    )


def _interruptions(view: RecordView) -> Found:
    if view.interruptions is None:
        return None
    return (
        f"The run was interrupted: {units.held(view.interruptions)}. The median leaves them out; "
        "what they cost shows in the rate by wall clock.",
        "Look for a pause of the loader, the disk or another program.",
    )


def _phases(view: RecordView) -> dict[str, Phase]:
    """{name: phase} of those whose times are close enough together for their median."""
    return {phase.name: phase for phase in view.phases if phase.iqr <= phase.median}
