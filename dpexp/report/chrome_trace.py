"""A run's timeline in Chrome's trace format: open it in Perfetto or chrome://tracing.

«Complete» events (``X``) with times in µs, one process for each device, one thread for each level of a lane;
the format is described at https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from typing import Any

from dpexp.record.record import Record, Row
from dpexp.report import units
from dpexp.report.timeline import Bar, TimelineStep

STEPS = 0
"""The process of the steps; the devices' processes follow."""


def events(record: Record, steps: list[TimelineStep]) -> dict[str, Any]:
    """The trace as one JSON object: the steps first, then the devices with their lanes."""
    processes: dict[str, int] = {}
    threads: dict[str, int] = {}
    found: list[Row] = [_name("process_name", STEPS, 0, f"{record.name or record.run_id}: steps")]
    for step in steps:
        name = f"step {step.number}"
        found.append(_complete(name, "step", (STEPS, 0), step.start, step.ms, {"rows": step.rows}))
        for lane in (lane for lane in step.lanes if lane.bars):
            if lane.device not in processes:
                processes[lane.device] = len(processes) + 1
                found.append(_name("process_name", processes[lane.device], 0, lane.device))
            for number, level in enumerate(lane.levels, 1):
                name = lane.name + (f" ({number})" if number > 1 else "")
                is_new = name not in threads
                place = (processes[lane.device], threads.setdefault(name, len(threads)))
                if is_new:
                    found.append(_name("thread_name", *place, name))
                found += [
                    _complete(bar.name, bar.phase, place, step.start + bar.start, bar.ms, _details(bar))
                    for bar in level
                ]
    facts = {"run_id": record.run_id, "strategy": record.strategy, "execution": record.execution}
    return {"traceEvents": found, "displayTimeUnit": "ms", "otherData": facts}


def _complete(name: str, kind: str, place: tuple[int, int], start: float, ms: float, args: Row) -> Row:
    times = {"ts": round(1000 * start, 3), "dur": round(1000 * ms, 3)}
    return {"name": name, "cat": kind, "ph": "X", "pid": place[0], "tid": place[1], **times, "args": args}


def _name(what: str, process: int, thread: int, name: str) -> Row:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _details(bar: Bar) -> Row:
    details = {
        "device": bar.device,
        "replica": bar.replica,
        "inputs": units.repeated(map(units.shape, bar.inputs), ", ") or None,
        "outputs": units.repeated(map(units.shape, bar.outputs), ", ") or None,
        "bytes": bar.bytes,
    }
    return {key: value for key, value in details.items() if value is not None}
