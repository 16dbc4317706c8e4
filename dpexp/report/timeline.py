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

import statistics
from dataclasses import dataclass, field
from typing import Any

from dpexp.record.phases import StepSpans, rows_of
from dpexp.record.record import Row
from dpexp.record.view import RecordView
from dpexp.report import layout

STEPS = 0
"""The process of the steps in the Chrome trace; those of the devices follow."""
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


# --- Chrome's trace format -----------------------------------------------------------------------


def chrome_trace(view: RecordView) -> dict[str, Any]:
    """All steps for Perfetto: a process for each device, a thread for each level of a lane.

    The events are «complete» (``X``), with times in µs; the format is described at
    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
    """
    record, processes = view.record, dict[str, int]()
    threads: dict[tuple[str, int], int] = {}
    events: list[Row] = [_name("process_name", STEPS, 0, f"{record.name or record.run_id}: steps")]
    for step in timeline_steps(view):
        events.append(
            _complete(f"step {step.number}", "step", (STEPS, 0), step.start, step.ms, {"rows": step.rows})
        )
        for lane in step.lanes:
            for number, level in enumerate(lane.levels):
                if lane.device not in processes:
                    processes[lane.device] = len(processes) + 1
                    events.append(_name("process_name", processes[lane.device], 0, lane.device))
                process, key = processes[lane.device], (lane.name, number)
                if key not in threads:
                    threads[key] = len(threads)
                    events.append(_name("thread_name", process, threads[key], lane.name))
                for bar in level:
                    place, start = (process, threads[key]), step.start + bar.start
                    events.append(
                        _complete(bar.name, bar.phase, place, start, bar.ms, {"device": bar.device})
                    )
    run = {"run_id": record.run_id, "strategy": record.strategy, "execution": record.execution}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": run}


def _complete(name: str, kind: str, place: tuple[int, int], start: float, ms: float, args: Row) -> Row:
    times = {"ts": round(1000 * start, 3), "dur": round(1000 * ms, 3)}
    return {"name": name, "cat": kind, "ph": "X", "pid": place[0], "tid": place[1], **times, "args": args}


def _name(what: str, process: int, thread: int, name: str) -> Row:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
