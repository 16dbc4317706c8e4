"""A run's timeline in Chrome's trace format: open it in Perfetto or chrome://tracing.

«Complete» events (``X``) with times in µs, one process for each device, one thread for each level of a lane;
the format is described at https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from typing import Any

from dpexp.record.record import Row
from dpexp.record.view import RecordView
from dpexp.report.timeline import timeline_steps

STEPS = 0
"""The process of the steps; the devices' processes follow."""


def chrome_trace(view: RecordView) -> dict[str, Any]:
    """The trace as one JSON object: the steps, and the devices with their lanes."""
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
