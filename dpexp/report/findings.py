"""Rules: each finds one thing in a Record, or nothing. A new rule is a function in any file of this folder::

@rule(place=35, headline="long warm-up")
def long_warm_up(evidence: Evidence) -> Finding | None:
    '''What it finds, in a sentence.'''
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from dpexp.config.ranges import plural
from dpexp.record.batches import replicated_bytes
from dpexp.record.files import PROFILER_TRACE
from dpexp.record.noise import SLOWER, Noise, outlier_limit
from dpexp.record.phases import union_length
from dpexp.record.record import Record
from dpexp.record.view import RecordView
from dpexp.report import intervals, units
from dpexp.report.intervals import CONFIDENCE, Interval
from dpexp.report.noise import noise_text
from dpexp.report.trend import Trend, blocks, ratio_within_run, trend


@dataclass(frozen=True)
class Finding:
    """``text`` states what was found, ``advice`` what to try; ``figures`` are the numbers of the text."""

    text: str
    advice: str
    figures: dict[str, float]


Find = Callable[["Evidence"], "Finding | None"]
"""None where the Record does not show it, or lacks the data."""


@dataclass(frozen=True)
class Rule:
    """``find`` under the name of its function.

    ``place``: findings are reported in ascending order, the layout (below 100) before how far the figures can
    be trusted. ``headline``: what it has found in a few words, for a verdict in one line.
    """

    name: str
    place: int
    headline: str
    find: Find


_RULES: list[Rule] = []


def rule(*, place: int, headline: str) -> Callable[[Find], Rule]:
    """Make a function a rule."""

    def register(find: Find) -> Rule:
        _RULES.append(made := Rule(find.__name__, place, headline, find))
        return made

    return register


def rules() -> tuple[Rule, ...]:
    """The rules by place."""
    return tuple(sorted(_RULES, key=lambda each: (each.place, each.name)))


def apply_rules(record: Record | RecordView) -> dict[str, Finding]:
    """{name of the rule: its finding} for every rule that finds something, by place."""
    evidence = Evidence(RecordView.of(record))
    return {each.name: found for each in rules() if (found := each.find(evidence)) is not None}


def headlines(found: Iterable[str]) -> list[str]:
    """The headlines of rules by their names."""
    by_name = {each.name: each.headline for each in rules()}
    return [by_name[name] for name in found]


ENOUGH = 8
"""Fewer samples do not support a statement about their spread or growth."""
MANY = 6 * ENOUGH
"""Fewer steps do not show a trend."""


@dataclass(frozen=True)
class Growth:
    """How step time grows with the rows of a batch, from the run's smallest and largest batches.

    ``per_row`` is in ms for each further row; ``fixed`` is the share of a step of ``many`` rows that a
    batch of no rows would still take.
    """

    few: int
    many: int
    few_ms: float
    many_ms: float
    per_row: Interval
    fixed: Interval


def _interval(values: list[float]) -> Interval:
    """The mean over blocks of the run with its 95% interval."""
    import numpy as np

    estimate = intervals.mean(np.array(values))
    middle, half = float(estimate.middle), float(estimate.half(CONFIDENCE))
    return Interval(middle, middle - half, middle + half)


class Evidence:
    """A Record, and the facts that several rules read.

    Of times that cannot be judged there are none: ``usual``, ``timed`` (the phase-timed steps), ``phases``,
    ``step_ms`` (their median) and what follows from them are empty, so that no rule finds anything in noise.
    """

    def __init__(self, view: RecordView) -> None:
        self.view, self.record = view, view.record
        self.batches, self.devices = view.batches, view.devices
        self.usual = view.usual if view.noise is None else None
        self.are_phases_judged = view.noise is None and view.phase_noise is None
        self.timed = view.timed_steps if self.are_phases_judged else []
        self.step_ms = statistics.median(self.timed or [0.0])
        phases = view.phases if self.are_phases_judged else []
        self.phases = {phase.name: phase for phase in phases if phase.iqr <= phase.median}

    @property
    def how_to_see(self) -> str:
        """How to see what no phase and no replica explains."""
        what = "--profile" if not self.record.work.get("operators", {}).get("trace") else PROFILER_TRACE
        return f"timeline.html shows the gaps, and {what} what fills them"

    def replicas_ms(self) -> float | None:
        """Median over steps of the time, ms, in which any replica computes; None without replicas."""
        if not self.are_phases_judged:
            return None
        usual = self.view.usual_numbers
        intervals: dict[int, list[tuple[float, float]]] = {}
        for row in self.record.timeline:
            if row["replica"] is not None and (usual is None or row["step"] in usual):
                intervals.setdefault(row["step"], []).append((row["start_us"], row["end_us"]))
        return statistics.median(map(union_length, intervals.values())) / 1000 if intervals else None

    @cached_property
    def ranks_ms(self) -> dict[int, dict[int, float]]:
        """{rank: {step: ms in which the rank itself computes}} of the phase-timed steps."""
        if not self.are_phases_judged:
            return {}
        times: dict[int, dict[int, float]] = {
            rank["rank"]: {} for rank in self.record.devices.get("ranks") or []
        }
        for row in self.record.timeline:
            if row["replica"] in times and row["phase"] in ("forward", "backward_compute"):
                of_rank, ms = times[row["replica"]], (row["end_us"] - row["start_us"]) / 1e3
                of_rank[row["step"]] = of_rank.get(row["step"], 0.0) + ms
        return times

    @cached_property
    def trend(self) -> Trend | None:
        """The trend of the steps after a slow start, if it is large enough to matter, also of a noisy run."""
        start = self.view.slow_start
        times = self.view.usual_times[start:]
        found = trend(times) if len(times) >= MANY else None
        if found is None or 1 / SLOWER < found.ratio < SLOWER:
            return None
        return replace(found, at=found.at and found.at + start)

    @cached_property
    def growth(self) -> Growth | None:
        """None without two batch sizes, one at least twice the other, that ran on equally many devices."""
        if self.usual is None:
            return None
        by_rows = {rows: times for rows, times in self.view.by_rows.items() if len(times) >= ENOUGH}
        few, many = min(by_rows, default=0), max(by_rows, default=0)
        replicas = {len(group.split) for group in self.batches if group.rows in (few, many)}
        if not by_rows or many < 2 * few or len(replicas) > 1:
            return None

        few_ms, many_ms = statistics.median(by_rows[few]), statistics.median(by_rows[many])
        count = min(ENOUGH, len(by_rows[few]) // 2, len(by_rows[many]) // 2)
        pairs = list(zip(blocks(by_rows[many], count), blocks(by_rows[few], count), strict=False))
        slopes = [(large - small) / (many - few) for large, small in pairs]
        fixed = [1 - slope * many / large for slope, (large, _) in zip(slopes, pairs, strict=True)]
        return Growth(few, many, few_ms, many_ms, _interval(slopes), _interval(fixed))


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


SMALL = 0.10
"""An overhead below this share of a step is not reported."""
TINY_MS = 1.0
"""A replica that computes for longer than this is not dominated by Python."""
FAR = 100
"""No estimate is given for a batch that is more than this many times the largest measured one."""
HOST_BYTES_PER_MS = 1e7
"""A host streams about 10 GB/s from one thread: a dense update of 256 MB, in three passes, takes 80 ms."""
EXPOSED, EXPOSED_MS = 0.25, 0.5
"""An all-reduce is reported where this share of a step, and at least this many ms, is not overlapped."""


@rule(place=20, headline="copying parameters")
def replicate(evidence: Evidence) -> Finding | None:
    """Copying the parameters to the replicas in every forward takes a large part of a step."""
    phase = evidence.phases.get("replicate")
    moved = replicated_bytes(evidence.record)
    if phase is None or phase.share <= SMALL or not moved:
        return None
    computing = evidence.phases.get("parallel_apply")
    targets = len({device for row in evidence.record.device_map for device in row["replicas"]})
    against = f", against {units.ms(computing.median)} of parallel_apply" if computing else ""
    text = (
        f"replicate takes {units.percent(phase.share)} of a step ({units.ms(phase.median)}): every forward "
        f"copies {units.size(moved)} of parameters and buffers to {plural(targets, 'device')}{against}."
    )
    figures = {"share": phase.share, "ms": phase.median, "bytes": float(moved)}
    advice = "Wrap a smaller block, or run one process per device: DistributedDataParallel copies nothing."
    rows = _rows_for_small(evidence.growth, phase.median)
    if rows is not None:
        figures["rows"] = rows
        advice = (
            f"It falls under {units.percent(SMALL)} from about {units.number(rows)} rows a batch, "
            f"if step time keeps growing with the rows as measured here. {advice}"
        )
    return Finding(text, advice, figures)


def _rows_for_small(growth: Growth | None, ms: float) -> float | None:
    """The rows at which ``ms`` is a SMALL share of a step, on the line through both batch sizes."""
    if growth is None or growth.per_row.low <= 0:
        return None
    no_rows_ms = growth.many_ms - growth.per_row.value * growth.many
    rows = (ms / SMALL - no_rows_ms) / growth.per_row.value
    return math.ceil(rows) if growth.many < rows <= FAR * growth.many else None


@rule(place=30, headline="mostly overhead")
def overhead(evidence: Evidence) -> Finding | None:
    """Threads, Python and launching kernels take longer than the kernels."""
    return _around_replicas(evidence) or _independent_of_rows(evidence)


@dataclass(frozen=True)
class _Forward:
    """A forward with replicas, in ms: all of it, while any replica computes, and what copies take."""

    ms: float
    computing: float
    copies: float

    @property
    def around(self) -> float:
        return self.ms - self.computing

    @property
    def is_explained(self) -> bool:
        """Whether the copies are at least half of what is around the replicas."""
        return self.copies >= self.around / 2

    @property
    def figures(self) -> dict[str, float]:
        return {"computing_ms": self.computing, "around_ms": self.around, "copies_ms": self.copies}


def _overhead_of_replicas(evidence: Evidence) -> _Forward | None:
    """The forward, where short replicas take less than half of it."""
    computing, phases = evidence.replicas_ms(), evidence.phases
    copies = sum(phases[name].median for name in ("scatter", "replicate", "gather") if name in phases)
    calls = phases["parallel_apply"].median if "parallel_apply" in phases else 0.0
    forward = phases["forward"].median if "forward" in phases else copies + calls
    if not calls or computing is None or computing >= TINY_MS or computing >= forward / 2:
        return None
    return _Forward(forward, computing, copies)


def _around_replicas(evidence: Evidence) -> Finding | None:
    forward = _overhead_of_replicas(evidence)
    if forward is None or not forward.is_explained:
        return None
    return Finding(
        f"Copies and threads dominate the forward: replicas compute during {units.ms(forward.computing)} of "
        f"its {units.ms(forward.ms)}, scatter, replicate and gather take {units.ms(forward.copies)}, and "
        f"starting threads {units.ms(forward.around - forward.copies)}.",
        "Give each device more to do, by a larger --batch-size or a larger model, or use one device.",
        forward.figures,
    )


@rule(place=35, headline="time of unknown cause")
def unknown_time(evidence: Evidence) -> Finding | None:
    """Neither the replicas nor the copies account for the forward."""
    forward = _overhead_of_replicas(evidence)
    if forward is None or forward.is_explained:
        return None
    return Finding(
        f"Most of the forward's {units.ms(forward.ms)} has no known cause: replicas compute during "
        f"{units.ms(forward.computing)}, scatter, replicate and gather take {units.ms(forward.copies)}, and "
        f"in the other {units.ms(forward.around - forward.copies)} threads start, wait or are held up.",
        f"To see the rest: {evidence.how_to_see}. Or give each device more to do by a larger --batch-size.",
        forward.figures,
    )


def _independent_of_rows(evidence: Evidence) -> Finding | None:
    growth = evidence.growth
    if growth is None or growth.fixed.low < 0.5 or growth.many_ms >= 10 * TINY_MS:
        return None
    return Finding(
        f"Fixed costs dominate: a step of {plural(growth.few, 'row')} takes {units.ms(growth.few_ms)}, "
        f"a step of {growth.many} rows {units.ms(growth.many_ms)}. About "
        f"{units.percent(min(1.0, growth.fixed.value))} of it does not depend on the rows.",
        f"A --batch-size well above {growth.many} costs little more; more devices cannot help yet.",
        {"fixed_share": growth.fixed.value, "low": growth.fixed.low, "high": growth.fixed.high},
    )


@rule(place=40, headline="dense gradient of a table")
def dense_gradient(evidence: Evidence) -> Finding | None:
    """The gradient of a large embedding table is written in full, although a batch touches few rows."""
    record = evidence.record
    if record.config.get("sparse", True) or record.config.get("eval"):
        return None
    hosted = record.config.get("host", ())
    tables = [
        row
        for row in record.device_map
        if row["kind"] == "parameter" and len(row["shape"]) == 2 and row["module"] in hosted
    ]
    touched = max((_ids(evidence, row["module"]) for row in tables), default=0)
    if not touched:
        return None
    table = max(tables, key=lambda row: int(row["bytes"]))
    rows, phases = table["shape"][0], evidence.phases.items()
    share = sum(phase.share for name, phase in phases if name in ("backward", "optimizer"))
    writing_ms = 3 * table["bytes"] / HOST_BYTES_PER_MS
    spent_ms = share * evidence.step_ms
    if rows < 10 * touched or share < 0.5 or writing_ms < 0.5 * spent_ms:
        return None
    return Finding(
        f"The dense gradient of '{table['module']}' dominates: backward and optimizer take "
        f"{units.percent(share)} of a step ({units.ms(spent_ms)}), writing {units.size(table['bytes'])} for "
        f"{rows:,} rows of which a batch touches at most {touched:,}.",
        "Use --sparse: only the rows of the batch get a gradient and move.",
        {"share": share, "bytes": float(table["bytes"]), "rows": float(rows), "touched": float(touched)},
    )


def _ids(evidence: Evidence, module: str) -> int:
    """How many ids the largest batch looks up in a module."""
    calls = [call for group in evidence.batches for call in group.calls if call.module == module]
    return max((sum(map(math.prod, inputs)) for call in calls for inputs in call.inputs), default=0)


@rule(place=80, headline="all-reduce that nothing overlaps")
def exposed_allreduce(evidence: Evidence) -> Finding | None:
    """The all-reduce continues long after backward has computed all gradients."""
    phases, step_ms = evidence.phases, evidence.step_ms
    if not {"allreduce", "overlap"} <= set(phases) or not step_ms:
        return None
    exposed = max(0.0, phases["allreduce"].median - phases["overlap"].median)
    if exposed < EXPOSED * step_ms or exposed < EXPOSED_MS:
        return None
    sent = sum(row["bytes"] for row in evidence.record.device_map if row["kind"] == "parameter")
    return Finding(
        f"Backward does not hide the all-reduce of {units.size(sent)} of gradients: "
        f"{units.ms(exposed)} of a step ({units.percent(exposed / step_ms)}) is spent on it alone.",
        "A larger --batch-size computes more for the same gradients; a smaller --bucket-mb starts earlier.",
        {"exposed_ms": exposed, "share": exposed / step_ms, "bytes": float(sent)},
    )


LOST = 0.05
"""Outliers are reported if they take this share of the time."""


@rule(place=110, headline="unsteady start")
def unsteady_start(evidence: Evidence) -> Finding | None:
    """The first measured steps still belong to the warm-up: each of them is an outlier among the others."""
    usual = evidence.usual
    count = evidence.view.slow_start
    if usual is None or count < 2:
        return None
    first, rest = statistics.median(usual.times[:count]), statistics.median(usual.times[count:])
    warmup = evidence.record.config.get("warmup", 0)
    return Finding(
        f"The first steps are not steady: the first {count} take {units.ratio(first / rest)} as long as the "
        f"{usual.n - count} after them ({units.ms(first)} against {units.ms(rest)}).",
        f"Warm up longer: --warmup {max(2 * warmup, warmup + 4 * count)}.",
        {"ratio": first / rest, "steps": float(count)},
    )


@rule(place=120, headline="step time changes")
def change_point(evidence: Evidence) -> Finding | None:
    """From some step on, all steps take longer, or shorter (Pettitt's test)."""
    found, usual = evidence.trend, evidence.usual
    if found is None or usual is None or found.at is None:
        return None
    slower = found.ratio > 1
    return Finding(
        f"The steps change at number {found.at} of {usual.n}: from there on they take "
        f"{units.ratio(found.ratio)} as long ({units.ms(found.after)} instead of {units.ms(found.before)}).",
        "See what else began on the machine then, or whether it became too hot; the median mixes both parts."
        if slower
        else "See what ended on the machine then, or warm up longer; the median mixes both parts.",
        {"ratio": found.ratio, "at": float(found.at), "p_value": found.p_value},
    )


@rule(place=130, headline="step time drifts")
def drift(evidence: Evidence) -> Finding | None:
    """The steps get slower, or faster, all the time (Mann and Kendall's test)."""
    found, usual = evidence.trend, evidence.usual
    if found is None or usual is None or found.at is not None:
        return None
    return Finding(
        f"The steps drift: over {usual.n} steps their time goes from {units.ms(found.before)} to "
        f"{units.ms(found.after)} ({units.ratio(found.ratio)}).",
        "Look for memory or a cache that grows, and for a machine that gets hot; with --steps the median "
        "changes.",
        {"ratio": found.ratio, "p_value": found.p_value},
    )


@rule(place=140, headline="outliers")
def outliers(evidence: Evidence) -> Finding | None:
    """A few single steps take a large part of the time."""
    usual = evidence.usual
    if usual is None or usual.n < 4 * ENOUGH or evidence.trend is not None:
        return None
    skipped, limit = evidence.view.slow_start, outlier_limit(usual.times)
    slow = [number for number, time in enumerate(usual.times) if time > limit and number >= skipped]
    lost = sum(usual.times[number] - usual.median for number in slow) / sum(usual.times)
    if not slow or lost < LOST:
        return None
    which = ", ".join(map(str, slow[:3])) + (" …" if len(slow) > 3 else "")
    return Finding(
        f"{len(slow)} of {usual.n} steps are outliers (number {which}): they take up to "
        f"{units.ms(max(usual.times[number] for number in slow))}, the median is {units.ms(usual.median)}, "
        f"and together they cost {units.percent(lost)} of the time.",
        "The median leaves them out; what they cost shows in the whole run. Look for a pause of the loader, "
        "the disk or another program.",
        {"steps": float(len(slow)), "share": lost},
    )


@rule(place=100, headline="outliers of a rank")
def rank_outliers(evidence: Evidence) -> Finding | None:
    """In single steps one rank computes much longer than usual, and the others wait."""
    slow = {}
    for rank, times in evidence.ranks_ms.items():
        if len(times) >= ENOUGH:
            limit = outlier_limit(list(times.values()))
            slow[rank] = {step for step, ms in times.items() if ms > limit}
    for rank in sorted(slow, key=lambda rank: -len(slow[rank])):
        single = slow[rank].difference(*(steps for other, steps in slow.items() if other != rank))
        if single:
            return _rank_finding(evidence, rank, single)
    return None


def _rank_finding(evidence: Evidence, rank: int, steps: set[int]) -> Finding:
    times = evidence.ranks_ms[rank]
    usual, most = statistics.median(times.values()), max(times[step] for step in steps)
    return Finding(
        f"Rank {rank} holds up {len(steps)} of {len(times)} timed steps: its forward and backward take up to "
        f"{units.ms(most)} there, {units.ms(usual)} usually, while no other rank is slower than usual.",
        "See what else runs on its host at times: a loader, a backup, another program's threads.",
        {"rank": float(rank), "steps": float(len(steps)), "most_ms": most, "usual_ms": usual},
    )


NOISY = 0.2
"""Step times whose IQR is a larger share of their median are noisy."""
COVERED = 0.9
"""Phases that cover less of a step leave out too much."""


@rule(place=0, headline="cannot be judged")
def too_noisy(evidence: Evidence) -> Finding | None:
    """Equal steps take so different times that none of them stands for the others."""
    found = evidence.view.noise
    if found is None:
        return None
    wall = evidence.view.wall_samples_per_s
    rate = f" It computes {units.number(wall)} samples/s by wall clock." if wall else ""
    return Finding(
        f"This run cannot be judged: {noise_text(found)}.{_change(evidence, found)}{rate}",
        "Run it again on an otherwise idle machine, with more --steps and fewer --threads than it has cores; "
        "nothing else is concluded from these times.",
        {"iqr": found.iqr, "median": found.median, "outliers_share": found.share, "n": float(found.n)},
    )


def _change(evidence: Evidence, noise: Noise) -> str:
    """From which step on all take longer or shorter, where that is what spreads them."""
    found = evidence.trend
    if found is None or found.at is None or not noise.is_wide:
        return ""
    return (
        f" From number {found.at} on they take {units.ms(found.after)} instead of {units.ms(found.before)}."
    )


@rule(place=150, headline="noisy steps")
def noise(evidence: Evidence) -> Finding | None:
    """Equal steps take very different times."""
    usual = evidence.usual
    if usual is None or usual.n < ENOUGH or usual.iqr <= NOISY * usual.median:
        return None
    share = usual.iqr / usual.median if usual.median else float("inf")
    return Finding(
        f"Steps are too noisy to compare closely: half of the {usual.n} steps of "
        f"{plural(usual.rows, 'row')} lie in a range of {units.ms(usual.iqr)}, "
        f"{units.percent(share)} of their median.",
        "Measure more --steps on an otherwise idle machine, with fewer --threads than it has cores.",
        {"iqr_share": share, "n": float(usual.n)},
    )


@rule(place=160, headline="phases leave time out")
def phase_sum(evidence: Evidence) -> Finding | None:
    """The phases do not cover the step, or timing them made it slower."""
    coverage = evidence.view.phase_coverage
    if evidence.timed and coverage is not None and coverage < COVERED:
        return Finding(
            f"The phases don't add up to the step: {units.percent(1 - coverage)} of "
            f"{units.ms(evidence.step_ms)} lies between them, for reasons that are not measured.",
            f"Read the phases as parts of what they cover; {evidence.how_to_see}.",
            {"coverage": coverage},
        )
    usual, timed = evidence.usual, evidence.timed
    if usual is None or min(usual.n, len(timed)) < ENOUGH:
        return None
    slower = ratio_within_run(timed, usual.times)
    if slower.low <= SLOWER:
        return None
    return Finding(
        f"Steps timed phase by phase take {units.ms(statistics.median(timed))}, steps timed as a whole "
        f"{units.ms(usual.median)}: waiting for every phase costs overlap.",
        "Read the phases as shares, and the step time from the steps.",
        {"ratio": slower.value, "low": slower.low, "high": slower.high},
    )
