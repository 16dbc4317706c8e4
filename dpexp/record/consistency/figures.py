"""Figures: the summary, computed anew from the raw samples, and what the probes of the machine measured."""

import copy
import math
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from dpexp.config.ranges import be, plural
from dpexp.record.figures.figure import At
from dpexp.record.figures.phase_times import rows_of, step_spans
from dpexp.record.figures.registry import figures
from dpexp.record.figures.step_times import rate, spread
from dpexp.record.figures.summary import summarize
from dpexp.record.record import Record, Row, present

_CLOSE = 1e-9
"""Versions of Python may round a median otherwise."""
_ROUNDED = 1e-3
"""Times of operators are rounded, and those of kernels need not add up to their sum."""


def _summary(record: Record) -> Iterator[str]:
    """Every figure of the registry, as this version computes it or one of before did."""
    bare = copy.copy(record)
    bare.summary = {}
    now = summarize(bare)
    for name in (figure.name for figure in figures(At.SUMMARY) if figure.name in record.summary):
        recorded = record.summary[name]
        differing = list(_differing(name, recorded, now.get(name)))
        before = _of_all_steps(record) if differing else {}
        if name not in before or not _is_same(recorded, before[name]):
            for key, value, given in differing:
                yield f"summary.{key} is {value}, but its samples give {given}"


def _of_all_steps(record: Record) -> Row:
    """Figures as versions of dpexp before 0.2 computed them, of batches of all sizes together."""
    times, rows = present(record.steps["time_ms"]), present(record.steps["samples"])
    found = spread(times)
    phases = {name: statistics.median(kept) for name, ms in record.phases.items() if (kept := present(ms))}
    given: Row = {"step_ms": found, "phases_ms": phases}
    if (coverage := _coverage(record)) is not None:
        given["phase_coverage"] = coverage
    if found is not None and sum(times):
        given["samples_per_s"] = rate(sum(rows), sum(times))
    return given


def _coverage(record: Record) -> float | None:
    """The share of all phase-timed steps, as one time, that is inside a phase."""
    steps = step_spans(record, None)
    total_ms = sum(step.ms for step in steps)
    return sum(step.covered for step in steps) / total_ms if total_ms > 0 else None


def _differing(key: str, one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    """The dotted keys of numbers that differ, with both."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name in dict.fromkeys((*one, *other)):
            if name in one or name in other:
                yield from _differing(f"{key}.{name}", one.get(name), other.get(name))
    elif not _is_same(one, other):
        yield key, one, other


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, float | int) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=_CLOSE) or one == other
    return bool(one == other)


def _spreads(record: Record) -> Iterator[str]:
    """What was measured of the machine is the spread of rates."""
    rates = {"peak": "flops_per_s", "memory": "bytes_per_s", "link": "bytes_per_s"}
    for name, key in rates.items():
        found = record.work.get(name, {}).get(key)
        if found is None:
            continue
        is_ordered = 0 < found["min"] <= found["median"] <= found["max"] < math.inf
        if not is_ordered or not 0 <= found["iqr"] <= found["max"] - found["min"] or found["n"] < 1:
            yield f"work.{name}.{key} is {found}, not the spread of rates"


def _observed(record: Record) -> Iterator[str]:
    """The observed step is of the first batch; its energy is of the measured steps."""
    rows, expected = record.work.get("rows"), rows_of(record, 0)
    if rows is not None and expected is not None and rows != expected:
        yield f"work.rows is {rows}, but the first batch has {expected}"
    for name, count in record.work.get("flops", {}).items():
        if not (isinstance(count, int) and count >= 0):
            yield f"work.flops.{name} is {count}, not a number of operations"
    energy, measured = record.work.get("energy"), len(record.steps["time_ms"])
    if energy and not 0 < energy["steps"] <= measured:
        steps = f"{plural(measured, 'step')} {be(measured)}"
        yield f"work.energy.steps is {energy['steps']}, but {steps} measured"


def _operators(record: Record) -> Iterator[str]:
    """The costliest operators are of the profiled steps of the run's devices, which they do not exceed."""
    found = record.work.get("operators") or {}
    rows = found.get("rows", [])
    if not rows:
        return
    times = [row["self_ms"] for row in rows]
    if times != sorted(times, reverse=True) or not times[-1] >= 0:
        yield f"work.operators.rows is not sorted by time: {times}"
    if sum(times) > found["total_ms"] * (1 + _ROUNDED) + _ROUNDED:
        yield f"work.operators.total_ms is {found['total_ms']}, but its rows take {sum(times)}"
    for row in rows:
        calls = row["calls"] * found["steps"]
        if calls < 1 - _ROUNDED or not math.isclose(calls, round(calls), rel_tol=_CLOSE):
            yield f"work.operators.rows has {calls} calls of {row['name']} in {found['steps']} steps"
    kinds = {device.rpartition("/")[2].partition(":")[0] for device in record.devices.get("used", [])}
    if (found["device"] == "cuda") != ("cuda" in kinds):
        yield f"work.operators.device is {found['device']}, but its devices are {', '.join(sorted(kinds))}"


def _peak(record: Record) -> Iterator[str]:
    """The peak is that of the run's type, threads and devices."""
    peak, config = record.work.get("peak"), record.config
    if not peak or not config.get("strategy"):
        return
    dtype, threads = config.get("autocast") or config.get("dtype"), record.environment.get("threads")
    if dtype and peak["dtype"] != dtype:
        yield f"work.peak.dtype is {peak['dtype']}, but its config says {dtype}"
    if threads and peak["device"] == record.environment.get("cpu") and peak["threads"] != threads:
        yield f"work.peak.threads is {peak['threads']}, but environment.threads is {threads}"
    most = max(1, len(record.devices["used"]))
    if not 1 <= peak["devices"] <= most:
        yield f"work.peak.devices is {peak['devices']}, but {most} are in use"


def _limits(record: Record) -> Iterator[str]:
    """What memory and the link give beside the stages of a hybrid."""
    for name in ("memory", "link"):
        if name in record.work and "embedding" not in record.phases:
            yield f"work.{name} is measured, but its phases have no embedding"
    if "link" in record.work and record.execution == "virtual":
        yield "work.link is measured, but its devices are virtual"
    memory = record.work.get("memory")
    if memory and memory["row_bytes"] not in _row_bytes(record):
        yield f"work.memory.row_bytes is {memory['row_bytes']}, and no table of its device_map has such rows"
    if memory and memory["bytes"] % memory["row_bytes"]:
        yield f"work.memory.bytes is {memory['bytes']}, not rows of {memory['row_bytes']}"


def _row_bytes(record: Record) -> set[int]:
    """The bytes of a row of each matrix on the host."""
    rows = (row for row in record.device_map if row["device"] == "cpu" and len(row["shape"]) == 2)
    return {row["bytes"] // max(1, row["shape"][0]) for row in rows}


RULES = (_summary, _spreads, _observed, _operators, _peak, _limits)
