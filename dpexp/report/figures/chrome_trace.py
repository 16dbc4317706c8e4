"""A run's timeline in Chrome's trace format: open it in Perfetto or chrome://tracing.

«Complete» events (``X``) with times in µs, one process a device, one thread a lane; the format is
described at https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

from typing import Any

from dpexp.record import Record, Row
from dpexp.report import units
from dpexp.report.analysis.timeline import Bar, Step

STEPS = 0
"""The process that holds the steps as a whole; devices follow."""


def events(record: Record, steps: list[Step]) -> dict[str, Any]:
    """The trace as one JSON object: steps on top, then the devices with their lanes."""
    devices: dict[str, int] = {}
    found: list[Row] = [_named("process_name", STEPS, 0, f"{record.name or record.run_id}: steps")]
    names: set[tuple[int, int]] = set()
    for step in steps:
        found.append(
            _complete(f"step {step.number}", "step", STEPS, 0, step.start, step.ms, {"rows": step.rows})
        )
        places: dict[str, int] = {}
        for lane in filter(lambda lane: lane.bars, step.lanes):
            if lane.device not in devices:
                devices[lane.device] = len(devices) + 1
                found.append(_named("process_name", devices[lane.device], 0, lane.device))
            process, thread = devices[lane.device], places.get(lane.device, 0)
            places[lane.device] = thread + 1
            if (process, thread) not in names:
                names.add((process, thread))
                found.append(_named("thread_name", process, thread, lane.name))
            found += [
                _complete(bar.name, bar.phase, process, thread, step.start + bar.start, bar.ms, _args(bar))
                for bar in lane.bars
            ]
    about = {"run_id": record.run_id, "strategy": record.strategy, "execution": record.execution}
    return {"traceEvents": found, "displayTimeUnit": "ms", "otherData": about}


def _complete(name: str, kind: str, process: int, thread: int, start: float, ms: float, args: Row) -> Row:
    return {
        "name": name,
        "cat": kind,
        "ph": "X",
        "pid": process,
        "tid": thread,
        "ts": round(1000 * start, 3),
        "dur": round(1000 * ms, 3),
        "args": args,
    }


def _named(what: str, process: int, thread: int, name: str) -> Row:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _args(bar: Bar) -> Row:
    args: Row = {"device": bar.device}
    if bar.replica is not None:
        args["replica"] = bar.replica
    if bar.inputs:
        args["inputs"] = units.repeated(map(units.shape, bar.inputs), ", ")
    if bar.outputs:
        args["outputs"] = units.repeated(map(units.shape, bar.outputs), ", ")
    if bar.bytes is not None:
        args["bytes"] = bar.bytes
    return args
