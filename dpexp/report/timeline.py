"""The phase-timed steps as lanes of bars.

    cpu                |scatter|replicate|parallel_apply      |
    cpu:0                                                     |gather|loss|…
    cpu:0 replica 0                      |0----------|
    cpu:1 replica 1                      |1-----------------|

    cpu:0 rank 0       |forward|loss|backward                 |optimizer|
                                    |compute----|
                                           |allreduce---------|

A phase is drawn on its device, the host where it has several, and those of a rank in the one lane of that
rank. A replica has a lane on its device. A phase inside another, or at the same time, stands on a further
level of its lane. The page and the Chrome trace show these bars.
"""

import math
import statistics
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from dpexp.config.printable import in_html
from dpexp.config.words import plural
from dpexp.record.phases import StepSpans, rows_of
from dpexp.record.record import Row
from dpexp.record.view import RecordView
from dpexp.report import layout, style, units

LEVEL_PX = 22
"""The height of a level of a lane, as ``page.css`` has it."""
_ROUNDING = 1e-5
"""Bars whose end and start differ by less (ms) do not overlap: a Record rounds times to a nanosecond."""


@dataclass(frozen=True)
class Bar:
    """One phase, or the part of it of its ``owner``, a replica or rank; ms from the start of the step."""

    phase: str
    device: str
    owner: str
    start: float
    ms: float

    @property
    def name(self) -> str:
        """``parallel_apply``, or ``replica 0``."""
        return self.owner if self.owner.startswith("replica") else self.phase


@dataclass
class Lane:
    """The bars of a device, replica or rank, on levels from top to bottom; those of one do not overlap."""

    device: str
    owner: str
    levels: list[list[Bar]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """``cpu:0``, ``cpu:0 replica 0``, ``cpu:0 rank 0``."""
        return f"{self.device} {self.owner}".rstrip()

    def add(self, bar: Bar) -> None:
        """Put a bar on the first level that is free at its start; later bars start later."""
        for level in self.levels:
            if level[-1].start + level[-1].ms <= bar.start + _ROUNDING:
                level.append(bar)
                return
        self.levels.append([bar])


@dataclass(frozen=True)
class TimelineStep:
    """One phase-timed step: its start (ms since the first step), its time, the rows of its batch."""

    number: int
    start: float
    ms: float
    rows: int | None
    lanes: list[Lane]

    @property
    def end(self) -> float:
        """The end of its last bar: other ranks may end after the first, whose time is that of the step."""
        bars = (bar for lane in self.lanes for level in lane.levels for bar in level)
        return max([self.ms, *(bar.start + bar.ms for bar in bars)])


def timeline_steps(view: RecordView) -> list[TimelineStep]:
    """Every phase-timed step of a Record, in order."""
    by_step: dict[int, list[Row]] = {}
    for row in view.record.timeline:
        by_step.setdefault(row["step"], []).append(row)
    return [_step(view, number, rows) for number, rows in sorted(by_step.items())]


def typical_step(view: RecordView) -> TimelineStep | None:
    """The step whose time and phases lie nearest to their medians, of those that medians are of."""
    names = {name for step in view.spans for name in step.phases}
    medians = {name: statistics.median(step.phases[name] for step in view.spans) for name in names}

    def distance(step: StepSpans) -> float:
        return sum(abs(step.phases[name] - ms) for name, ms in medians.items()) + abs(step.ms - view.timed_ms)

    number = min(view.spans, key=distance).number if view.spans else None
    return next((step for step in timeline_steps(view) if step.number == number), None)


def _step(view: RecordView, number: int, rows: list[Row]) -> TimelineStep:
    of_step = [row for row in rows if row["phase"] == "step"] or rows
    start, end = min(row["start_us"] for row in of_step), max(row["end_us"] for row in of_step)
    inside = [row for row in rows if row["phase"] != "step"]
    lanes = _lanes(view, inside, start)
    return TimelineStep(number, start / 1000, (end - start) / 1000, rows_of(view.record, number), lanes)


def _lanes(view: RecordView, rows: list[Row], start: float) -> list[Lane]:
    """A lane for each rank, or else for each device and replica; with replicas also for idle devices."""
    ranks: dict[int | None, str] = {
        each["rank"]: each["device"] for each in view.record.devices.get("ranks") or []
    }
    rows = [row for row in rows if row["replica"] in ranks] or rows  # the others repeat the first rank's
    # of those that start together first what took no time, then the longest, which is outside
    rows.sort(key=lambda row: (row["start_us"], row["end_us"] > row["start_us"], -row["end_us"]))
    lanes: dict[tuple[bool, int, tuple[int, str, int]], Lane] = {}
    for row in rows:
        replica = row["replica"]
        device = ranks.get(replica) or str(row["device"])
        owner = "" if replica is None else f"{'rank' if replica in ranks else 'replica'} {replica}"
        key = (replica is not None, replica or 0, layout.device_order(device))
        times = (row["start_us"] - start) / 1000, (row["end_us"] - row["start_us"]) / 1000
        lanes.setdefault(key, Lane(device, owner)).add(Bar(row["phase"], row["device"], owner, *times))
    ordered = [lanes[key] for key in sorted(lanes)]
    busy = {lane.device for lane in ordered if lane.owner}
    return [*ordered, *(Lane(device, "idle") for device in view.devices if busy and device not in busy)]


# --- timeline.html -------------------------------------------------------------------------------


def timeline_page(view: RecordView) -> str:
    """A complete page that shows a typical step, light or dark as the system is.

    Everything is inline and static, so that it works from a file and in MLflow's preview.
    """
    record = view.record
    title = in_html(f"{record.strategy} · {record.execution} · {record.name or record.run_id}")
    css = files("dpexp.report").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{css}</style></head>\n"
        f"<body><h1>{title}</h1>{_picture(view)}</body></html>\n"
    )


def _picture(view: RecordView) -> str:
    """A typical step as lanes of bars under an axis, with a legend that has the medians of its phases."""
    colors, step = style.of_run(view), typical_step(view)
    if step is None:
        return ""
    rows = f", {plural(step.rows, 'row')}" if step.rows else ""
    text = (
        f"step {step.number}{rows}: {units.ms(step.ms)}; it is the most typical of "
        f"{plural(len(view.spans), 'step')}; the legend has medians, and a bar the time in this step"
    )
    legend = "".join(
        f'<span><i style="background:{colors[phase.name]}"></i>'
        f"{in_html(phase.name)} {units.ms(phase.median)}</span> "
        for phase in view.phases
    )
    lanes = (_lane(lane, step, colors) for lane in step.lanes)
    return (
        f'<p>{text}</p><p class="legend">{legend}</p>'
        f'<div class="lanes"><b></b><div class="axis">{_axis(step.end)}</div>{"".join(lanes)}</div>'
    )


def _axis(ms: float) -> str:
    if not 0 < ms < math.inf:
        return ""
    power = 10.0 ** math.floor(math.log10(ms))
    size = next(part * power for part in (2.0, 1.0, 0.5, 0.2) if ms >= 3 * part * power)
    ticks = (number * size for number in range(int(0.95 * ms / size) + 1))
    return "".join(f'<i style="left:{100 * tick / ms:.2f}%">{units.ms(tick)}</i>' for tick in ticks)


def _lane(lane: Lane, step: TimelineStep, colors: dict[str, str]) -> str:
    bars = "".join(
        _bar(bar, number, step, colors[bar.phase])
        for number, level in enumerate(lane.levels)
        for bar in level
        if bar.ms
    )
    height = LEVEL_PX * max(1, len(lane.levels))
    return f'<b>{in_html(lane.name)}</b><div class="track" style="height:{height}px">{bars}</div>'


def _bar(bar: Bar, level: int, step: TimelineStep, color: str) -> str:
    time = f"{units.ms(bar.ms)}, {units.percent(bar.ms / step.ms)} of the step"
    facts = (f"{bar.phase}, {bar.owner}".removesuffix(", "), f"on {bar.device}", time)
    left, width = 100 * bar.start / step.end, 100 * bar.ms / step.end
    look = f"left:{left:.3f}%;width:{width:.3f}%;top:{LEVEL_PX * level}px;background:{color}"
    title, name = in_html("\n".join(facts)), in_html(bar.name)
    return f'<span class="bar" style="{look};color:{style.ink(color)}" title="{title}"><i>{name}</i></span>'


# --- Chrome's trace format -----------------------------------------------------------------------


def chrome_trace(view: RecordView) -> dict[str, Any]:
    """All steps for Perfetto: a process for each device, a thread for each level of a lane.

    The events are «complete» (``X``), with times in µs; the format is described at
    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
    """
    record = view.record
    processes = {f"{record.name or record.run_id}: steps": 0}
    threads: dict[tuple[int, str, int], int] = {}
    events: list[Row] = []
    for step in timeline_steps(view):
        name, rows = f"step {step.number}", {"rows": step.rows}
        events.append(_complete(name, "step", (0, 0), step.start, step.ms, rows))
        for lane in step.lanes:
            for number, level in enumerate(lane.levels):
                process = processes.setdefault(lane.device, len(processes))
                place = process, threads.setdefault((process, lane.name, number), len(threads))
                events += [
                    _complete(
                        bar.name, bar.phase, place, step.start + bar.start, bar.ms, {"device": bar.device}
                    )
                    for bar in level
                ]
    named = [_name("process_name", process, 0, name) for name, process in processes.items()]
    named += [_name("thread_name", process, each, name) for (process, name, _), each in threads.items()]
    run = {"run_id": record.run_id, "strategy": record.strategy, "execution": record.execution}
    return {"traceEvents": [*named, *events], "displayTimeUnit": "ms", "otherData": run}


def _complete(name: str, kind: str, place: tuple[int, int], start: float, ms: float, args: Row) -> Row:
    times = {"ts": round(1000 * start, 3), "dur": round(1000 * ms, 3)}
    return {"name": name, "cat": kind, "ph": "X", "pid": place[0], "tid": place[1], **times, "args": args}


def _name(what: str, process: int, thread: int, name: str) -> Row:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
