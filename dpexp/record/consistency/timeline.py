"""Timeline: its spans, in which order and how deep, and the phases, which are their sums."""

import math
from collections.abc import Iterator

from dpexp.config.ranges import plural
from dpexp.record.record import Record, Row

_ROUNDED_US = 0.002
"""What two rounded ends of a span may add to it."""


def _steps(record: Record) -> dict[int, Row]:
    """{number: the span of the phase-timed step}"""
    return {row["step"]: row for row in record.timeline if row["phase"] == "step"}


def _order(record: Record) -> Iterator[str]:
    """Steps follow each other, and no span ends before it starts."""
    reached, steps = -math.inf, _steps(record)
    if list(steps) != list(range(len(steps))):
        yield f"timeline has the steps {list(steps)}, not each once and in order"
    for number, row in steps.items():
        if row["start_us"] < reached:
            yield f"timeline has step {number} from {row['start_us']} µs, before the last one ends, {reached}"
        reached = row["end_us"]
    for row in record.timeline:
        if row["end_us"] < row["start_us"]:
            yield f"timeline has {_span(row)}"
    limit = record.config.get("phase_steps")
    if limit is not None and record.config.get("strategy") and len(steps) > limit:
        yield f"timeline has {plural(len(steps), 'step')}, but its config says --phase-steps {limit}"


def _inside(record: Record) -> Iterator[str]:
    """A step contains its phases, and a phase its replicas; not where an accelerator's events time them."""
    spans: dict[tuple[int, str], list[Row]] = {}
    for row in record.timeline:
        if row["replica"] is None:
            spans.setdefault((row["step"], row["phase"]), []).append(row)
    is_one_process = not record.devices.get("ranks")
    for row in record.timeline:
        is_on_cpu, is_replica = row["device"].startswith("cpu"), row["replica"] is not None
        phase = row["phase"] if is_replica else "step"
        is_timed_by_host = is_one_process and is_on_cpu if is_replica else is_one_process or is_on_cpu
        around = spans.get((row["step"], phase), ())
        if is_timed_by_host and not any(_contains(outer, row) for outer in around):
            yield f"timeline has {_span(row)}, outside of its {phase}"


def _span(row: Row) -> str:
    what = "" if row["replica"] is None else f" of replica {row['replica']}"
    return f"{row['phase']}{what} in step {row['step']} from {row['start_us']} to {row['end_us']} µs"


def _contains(outer: Row, inner: Row) -> bool:
    return bool(
        outer["start_us"] - _ROUNDED_US <= inner["start_us"]
        and inner["end_us"] <= outer["end_us"] + _ROUNDED_US
    )


def _sums(record: Record) -> Iterator[str]:
    """The time of a phase in a step is the sum of its spans there."""
    if not record.timeline or record.damage:
        return
    spans: dict[str, dict[int, list[float]]] = {name: {} for name in record.phases}
    for row in record.timeline:
        if row["replica"] is None and row["phase"] != "step":
            of_phase = spans.setdefault(row["phase"], {})
            of_phase.setdefault(row["step"], []).append((row["end_us"] - row["start_us"]) / 1e3)
    for name, by_step in spans.items():
        recorded, given = record.phases.get(name, []), list(by_step.values())
        if len(recorded) != len(given):
            found, steps = plural(len(recorded), "time"), plural(len(given), "step")
            yield f"phases.{name} has {found}, but timeline has it in {steps}"
            continue
        for place, (ms, of_step) in enumerate(zip(recorded, given, strict=True)):
            if not abs(ms - sum(of_step)) <= _ROUNDED_US * len(of_step) / 1e3:
                yield f"phases.{name} is {ms} ms at place {place}, but timeline gives {sum(of_step)}"
                break


RULES = (_order, _inside, _sums)
