"""Invariants: what is true of every Record that dpexp writes: an oracle for tests."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from dpexp.record.record import Record

ITEM_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "bool": 1}
ROUNDED_US = 0.01


def broken(record: Record) -> list[str]:
    """The invariants that a Record breaks, in words."""
    rules = (steps, batches, replicas, device_map, memory, timeline, verification)
    return [text for rule in rules for text in rule(record)]


def steps(record: Record) -> Iterator[str]:
    lengths = {name: len(values) for name, values in record.steps.items() if values}
    if len(set(lengths.values())) > 1:
        yield f"steps have {lengths}"
    if any(not 0 <= ms < math.inf for ms in record.steps["time_ms"]):
        yield "a step takes no time, or for ever"
    losses = [loss for loss in record.steps["loss"] if loss is not None]
    if record.status == "finished" and not all(map(math.isfinite, losses)):
        yield "a finished run has a loss that is not finite"


def batches(record: Record) -> Iterator[str]:
    """An epoch has all samples, and its last batch the rest of them."""
    size, samples = record.config.get("batch_size"), record.data.get("samples")
    if not size or not samples or record.data.get("batches"):
        return
    sizes = [min(size, samples - first) for first in range(0, samples, size)]
    for number, rows in enumerate(record.steps["samples"]):
        if rows != sizes[number % len(sizes)]:
            yield f"step {number} has {rows} rows of batches of {sizes}"
            return


def replicas(record: Record) -> Iterator[str]:
    """What replicas get are the parts of what the model got."""
    calls: dict[tuple[int, str], dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for row in record.shapes:
        calls[row["batch"], row["module"]][row["scope"]].append(row)
    for (batch, module), rows in calls.items():
        together, parts = rows["outside"], rows["replica"]
        if len(together) != 1 or not parts or record.devices.get("ranks"):
            continue
        if sorted(row["replica"] for row in parts) != list(range(len(parts))):
            continue  # a module that is called several times
        for number, shape in enumerate(together[0]["inputs"]):
            rows_of_parts = [row["inputs"][number][0] for row in parts if row["inputs"][number]]
            if shape and sum(rows_of_parts) != shape[0]:
                yield f"{module or 'the model'} in batch {batch} has {rows_of_parts} of {shape[0]} rows"


def device_map(record: Record) -> Iterator[str]:
    used = {"cpu", *record.devices["used"]}
    for row in record.device_map:
        name, size = f"{row['module']}.{row['parameter']}", ITEM_BYTES.get(row["dtype"])
        if size and row["bytes"] != size * math.prod(row.get("local_shape", row["shape"])):
            yield f"{name} has {row['bytes']} bytes"
        if not {row["device"], *row["replicas"]} <= used:
            yield f"{name} is on {row['device']}, {row['replicas']}, not in {used}"


def memory(record: Record) -> Iterator[str]:
    """Parameters and buffers of the observed step are those of the device map."""
    if record.devices.get("ranks"):
        return
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for row in record.device_map:
        for device in [row["device"], *row["replicas"]]:
            found[device][row["kind"]] += row["bytes"]
    for row in record.memory_use:
        for category, kind in (("parameters", "parameter"), ("buffers", "buffer")):
            if row.get(category, 0) != found[row["device"]][kind]:
                yield f"{category} of {row['device']} are {row[category]} bytes, not {found[row['device']]}"


def timeline(record: Record) -> Iterator[str]:
    """A step contains its phases, and the times of phases are the sums of their spans."""
    ends = {row["step"]: row for row in record.timeline if row["phase"] == "step"}
    sums: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for row in record.timeline:
        if row["end_us"] < row["start_us"]:
            yield f"{row} ends before it starts"
        outer = ends[row["step"]]
        is_on_host = row["device"].startswith("cpu") and not record.devices.get("ranks")
        if is_on_host and not (
            outer["start_us"] - ROUNDED_US <= row["start_us"]
            and row["end_us"] <= outer["end_us"] + ROUNDED_US
        ):
            yield f"{row} is outside of its step"
        if row["replica"] is None and row["phase"] != "step":
            sums[row["phase"]][row["step"]] += (row["end_us"] - row["start_us"]) / 1e3
    for phase, by_step in sums.items():
        recorded = record.phases.get(phase, [])
        if len(recorded) != len(by_step) or any(
            abs(ms - total) > ROUNDED_US for ms, total in zip(recorded, by_step.values(), strict=False)
        ):
            yield f"phase {phase} has other times than its spans"


def verification(record: Record) -> Iterator[str]:
    """What passed has errors within its tolerance."""
    of_run = [record.verification.get(part) or {} for part in ("first_steps", "last_step")]
    for part in (record.verification, *of_run):
        errors = {key: value for key, value in part.items() if key.endswith("_error") and value is not None}
        if part.get("passed") and not all(0 <= error <= part["tolerance"] for error in errors.values()):
            yield f"errors {errors} passed with tolerance {part['tolerance']}"
