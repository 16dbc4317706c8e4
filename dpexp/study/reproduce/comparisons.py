"""Comparisons: what of two Records of one config is equal, and whether it must be."""

import reprlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpexp.config.errors import plural
from dpexp.record.record import Record, Row
from dpexp.record.steps import present
from dpexp.record.view import RecordView
from dpexp.report import intervals, units

BITS = ("torch", "cuda", "cpu", "cpu_capability", "threads", "accelerators")
"""What decides bits."""
SAME_TIMES = (*BITS, "cpu_count")
"""The kind of machine: times are compared where these facts are equal."""


@dataclass(frozen=True)
class Check:
    """One comparison of the two runs; ``is_equal`` is None if there is nothing to compare."""

    what: str
    is_equal: bool | None
    is_required: bool
    details: str


def equal(before: str | None, after: str | None) -> bool | None:
    return None if before is None or after is None else before == after


def fact(what: str, then: Any, now: Any) -> Check:
    """A fact that the config decides."""
    if then == now:
        return Check(what, True, True, "equal")
    return Check(what, False, True, f"{reprlib.repr(then)} then, {reprlib.repr(now)} now")


def named(record: Record) -> Row:
    return {name: record.devices.get(name) for name in ("used", "output")}


def verdict(record: Record) -> Row:
    """What a verification of another version of dpexp has too."""
    return {name: record.verification.get(name) for name in ("checked", "passed", "dtype")}


def rows(what: str, then: list[Row], now: list[Row]) -> Check:
    """Whether rows are equal in the keys that they had then: a later dpexp may write more."""
    for number, (before, after) in enumerate(zip(then, now, strict=False)):
        keys = [key for key in before if before[key] != after.get(key)]
        if keys:
            changes = ", ".join(f"{key} {before[key]} -> {after.get(key)}" for key in keys)
            where = f"row {number}" + (f" (module '{before['module']}')" if "module" in before else "")
            return Check(what, False, True, f"{where} differs: {changes}")
    if len(then) != len(now):
        return Check(what, False, True, f"{plural(len(then), 'row')} then, {len(now)} now")
    return Check(what, True, True, f"all {plural(len(then), 'row')} equal")


def bits(part: str, then: Record, now: Record, same_bits: bool) -> Check:
    same = equal(then.digest.get(part), now.digest.get(part))
    details = {None: "not recorded", True: "bitwise equal", False: "other bits"}[same]
    return Check(f"{part} at the end", same, same_bits, details)


def losses(before: list[float], after: list[float], same_bits: bool) -> Check:
    """Compare step by step, up to the first step that differs; NaN equals NaN."""
    if not before:
        return Check("losses", None, False, "not recorded")
    for step, (old, new) in enumerate(zip(before, after, strict=False)):
        if None not in (old, new) and old != new and (old == old or new == new):
            apart = abs(new - old) / abs(old) if old else abs(new)
            end = (
                f"; by {abs(present(after)[-1] - present(before)[-1]):.1e} at the end"
                if len(after) == len(before)
                else ""
            )
            return Check("losses", False, same_bits, f"part at step {step} by {apart:.1e} of the loss{end}")
    count = min(len(before), len(after))
    return Check("losses", len(before) == len(after), same_bits, f"equal in all {plural(count, 'step')}")


def incomparable(then: Record, now: Record) -> str:
    """Why their times are not comparable; empty where execution, machine and versions are of one kind."""
    if then.execution != now.execution:
        return f"{then.execution} then, {now.execution} now"
    kinds = [(key, then.environment.get(key), now.environment.get(key)) for key in SAME_TIMES]
    return "; ".join(f"{key} {before} then, {after} now" for key, before, after in kinds if before != after)


def time(then: Record, now: Sequence[Record]) -> Check:
    """Other times do not refute a reproduction, since they depend on what else the machine does."""
    what = "time of a step"
    if reason := incomparable(then, now[0]):
        return Check(what, None, False, f"not comparable: {reason}")
    before, *after = (RecordView(record).usual_times for record in (then, *now))
    if not before or not all(after):
        return Check(what, None, False, "no steps to compare")
    found = intervals.against_one(list(map(statistics.median, after)), statistics.median(before))
    is_equal = 1.0 in found if found.is_known else None
    return Check(what, is_equal, False, f"of then: {found.text(units.ratio)}")
