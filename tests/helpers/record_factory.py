"""Records with chosen figures, made of written ones, on which findings and figures are tested."""

import itertools
from typing import Any

from dpexp.config.run_config import RunConfig
from dpexp.record.figures import summarize
from dpexp.record.record import Record
from helpers import journals

EPOCH = (30, 30, 30, 10)
PHASES = {
    "scatter": 0.05,
    "replicate": 0.1,
    "parallel_apply": 1.0,
    "gather": 0.05,
    "loss": 0.1,
    "backward": 0.5,
    "optimizer": 0.2,
}
"""Phases of a usual step of ``whole``, in ms, in order."""
OF_HYBRID = {"embedding": 0.3, "transfer": 0.02, "dense": 0.4, "loss": 0.1, "backward": 0.5, "optimizer": 0.2}
OF_WRITTEN = ("experiment", "status", "started", "ended", "environment", "data", "verification")
"""What these Records have of one that was written."""


def chunks(rows: int, count: int) -> list[int]:
    """Rows of each replica, as ``tensor.chunk`` splits them."""
    size = -(-rows // count)
    return [min(size, rows - start) for start in range(0, rows, size)]


def whole(
    count: int,
    *,
    phases: dict[str, float] = PHASES,
    steps: int = 100,
    step_ms: float | None = None,
    modules: int = 1,
    virtual: bool = True,
    batches: tuple[int, ...] = EPOCH,
    replica_share: float = 0.9,
    **changes: Any,
) -> Record:
    """A finished run of ``whole``; each replica computes ``replica_share`` of parallel_apply."""
    kind = "cpu" if virtual else "cuda"
    devices = [f"{kind}:{index}" for index in range(count)]
    config = RunConfig("whole", virtual=count if virtual else None, batch_size=batches[0])
    record = _begun(f"whole-{count}", config, devices)
    record.data["samples"] = sum(batches)
    record.execution = "virtual" if virtual else "real"
    names = [""] if modules == 1 else [f"layers.{index}.linear" for index in range(modules)]
    written = journals.record("whole")
    places = {"device": devices[0], "replicas": devices[1:]}
    record.device_map = [row | {"module": name} | places for name in names for row in written.device_map]
    bytes_of_row = {key: size // 15 for key, size in written.shapes[1]["bytes"].items()}
    for batch, rows in enumerate(batches):
        record.shapes.append(shape_row(batch, "", [[rows, 5]], [[rows, 2]], devices[0]))
        for name in sorted({"", *names}):
            for index, size in enumerate(chunks(rows, count)):
                row = shape_row(batch, name, [[size, 5]], [[size, 2]], devices[index], index)
                moved = {key: size * each for key, each in bytes_of_row.items()}
                record.shapes.append(row if name else row | {"bytes": moved})
    measure(record, sum(phases.values()) if step_ms is None else step_ms, steps, batches)
    time_phases(record, phases, devices[: len(chunks(batches[0], count))], replica_share)
    record.memory = {"cpu": 300_000_000}
    if not virtual:
        record.memory |= dict.fromkeys(devices, 100_000_000)
    for key, value in changes.items():
        setattr(record, key, value)
    summarize(record)
    return record


def hybrid(*, sparse: bool = False) -> Record:
    """A finished run of ``hybrid``: a table on the host, maybe with sparse gradients, and a linear layer."""
    written = journals.record("hybrid")
    config = RunConfig("hybrid", virtual=1, options={"sparse": sparse})
    record = _begun("hybrid-1", config, written.devices["used"][1:])
    record.execution, record.memory = "virtual", {"cpu": 300_000_000}
    record.device_map, record.shapes = written.device_map, written.shapes
    measure(record, sum(OF_HYBRID.values()), 100, EPOCH)
    time_phases(record, OF_HYBRID, [], 0.0)
    summarize(record)
    return record


def _begun(name: str, config: RunConfig, devices: list[str]) -> Record:
    """A Record with this config, and what a written one has of its machine, data, end and verification."""
    facts = vars(journals.record("whole"))
    record = Record(run_id="0123456789ab", name=name, **{key: facts[key] for key in OF_WRITTEN})
    record.strategy, record.config, record.config_digest = config.strategy, config.to_dict(), config.digest()
    record.environment["argv"] = ["scripts/run.py", config.strategy]
    record.devices = {"requested": devices, "used": devices, "output": devices[0]}
    return record


def measure(record: Record, step_ms: float, steps: int, batches: tuple[int, ...]) -> None:
    """Measured steps that cycle through the batches of an epoch.

    The largest batch takes ``step_ms`` within 1%; a fifth of that does not depend on the rows.
    """
    sizes = list(itertools.islice(itertools.cycle(batches), steps))
    wobble = itertools.cycle((0.99, 1.0, 1.01, 1.0, 0.995))
    times = [step_ms * (0.2 + 0.8 * rows / max(batches)) * next(wobble) for rows in sizes]
    record.steps = {
        "time_ms": times,
        "wall_ms": [1.25 * ms for ms in times],
        "loss": [1.0 / (1 + index) for index in range(steps)],
        "samples": sizes,
    }


def time_phases(
    record: Record, phases: dict[str, float], replicas: list[str], share: float, steps: int = 3
) -> None:
    """Phase-timed steps with consecutive phases; the replicas compute during parallel_apply."""
    output = record.devices["output"]
    clock = 0.0
    for step in range(steps):
        step_start = clock
        rows = []
        for phase, ms in phases.items():
            end = clock + 1000 * ms
            rows.append(timeline_row(step, phase, None, output, clock, end))
            if phase == "parallel_apply":
                margin = (end - clock) * (1 - share) / 2
                rows += [
                    timeline_row(step, phase, index, device, clock + margin, end - margin)
                    for index, device in enumerate(replicas)
                ]
            record.phases.setdefault(phase, []).append(ms)
            clock = end
        record.timeline += [timeline_row(step, "step", None, output, step_start, clock), *rows]
        clock += 100.0


def shape_row(
    batch: int,
    module: str,
    inputs: list[list[int]],
    outputs: list[list[int]],
    device: str,
    replica: int | None = None,
) -> dict[str, Any]:
    """One row of the shapes."""
    scope = "outside" if replica is None else "replica"
    return {
        "batch": batch,
        "scope": scope,
        "module": module,
        "replica": replica,
        "device": device,
        "inputs": inputs,
        "outputs": outputs,
    }


def timeline_row(
    step: int, phase: str, replica: int | None, device: str, start: float, end: float
) -> dict[str, Any]:
    """One row of the timeline, times in microseconds."""
    return {
        "step": step,
        "phase": phase,
        "replica": replica,
        "device": device,
        "start_us": start,
        "end_us": end,
    }
