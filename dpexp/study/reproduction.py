"""Reproduction: two Records of one config, compared.

What the config decides (execution, data, devices, shapes, device map, rows of the steps, verification) must
be equal on every machine. Bits must be equal unless something that decides them differs: torch, the kind of
devices, the CPU's model and vector instructions, the number of threads. Times are compared on one kind of
machine, and may differ.
"""

import dataclasses
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
from dpexp.report.section import Section, Table

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


MATTERS: dict[str, tuple[str, ...]] = {
    "bits": BITS,
    "anything": (),
    "time": ("cpu_count", "host"),
    "nothing expected": ("python", "os"),
}
"""What a difference of these facts may change, the most important first; ``bits`` includes time."""


@dataclass(frozen=True)
class EnvironmentDifference:
    """A fact of the environment that differs, and what that may change."""

    what: str
    then: str
    now: str
    affects: str


@dataclass(frozen=True)
class Reproduction:
    """Two Records of one config, compared. ``is_reproduced``: every required check is equal."""

    then: Record
    now: Record
    differences: list[EnvironmentDifference]
    checks: list[Check]
    warnings: list[str]

    @property
    def is_reproduced(self) -> bool:
        return all(check.is_equal is not False for check in self.checks if check.is_required)


def compare_records(then: Record, now: Record, repeats: Sequence[Record] = ()) -> Reproduction:
    """Which parts of two Records of one config are equal, and which must be; ``repeats`` are for its time."""
    differences = _differences(then, now)
    same_bits = not any(difference.affects == "bits" for difference in differences)
    same_data = equal(then.data.get("sha256"), now.data.get("sha256"))
    checks = [
        Check("status", then.status == now.status, True, _status(then, now)),
        fact("execution", then.execution, now.execution),
        fact("devices", named(then), named(now)),
        fact("verification", verdict(then), verdict(now)),
        Check("data", same_data, True, "the samples' SHA-256"),
        rows("shapes", then.shapes, now.shapes),
        rows("device map", then.device_map, now.device_map),
        fact("rows of the steps", then.steps["samples"], now.steps["samples"]),
        fact("phases", sorted(then.phases), sorted(now.phases)),
        bits("weights", then, now, same_bits),
        bits("outputs", then, now, same_bits),
        losses(then.steps["loss"], now.steps["loss"], same_bits),
        time(then, [now, *repeats]),
    ]
    return Reproduction(then, now, differences, checks, _warnings(then, now))


def _differences(then: Record, now: Record) -> list[EnvironmentDifference]:
    """What differs in the environment, the most important first; what was not recorded is left out."""
    before, after = then.environment, now.environment
    found = [
        EnvironmentDifference(key, str(before[key]), str(after.get(key)), affects)
        for affects, keys in MATTERS.items()
        for key in keys
        if before.get(key) not in (None, after.get(key))
    ]
    versions = after.get("packages") or {}
    found += [
        EnvironmentDifference(name, version, str(versions.get(name)), "nothing expected")
        for name, version in sorted((before.get("packages") or {}).items())
        if name != "torch" and version != versions.get(name)
    ]
    old, new = (str((facts.get("git") or {}).get("commit"))[:12] for facts in (before, after))
    if old != new:
        found.append(EnvironmentDifference("commit", old, new, "anything"))
    return sorted(found, key=lambda difference: list(MATTERS).index(difference.affects))


def _status(then: Record, now: Record) -> str:
    error = f": {now.error['message']}" if now.error else ""
    return f"{then.status} then, {now.status} now{error}" if then.status != now.status else now.status


def _warnings(then: Record, now: Record) -> list[str]:
    return [
        f"{when} with uncommitted changes: no commit holds that code"
        for record, when in ((then, "the record was made"), (now, "this reproduction was made"))
        if (record.environment.get("git") or {}).get("dirty")
    ]


def reproduction_sections(result: Reproduction) -> list[Section]:
    """The reproduction as report sections."""
    equal = {True: "equal", False: "DIFFERS", None: "-"}
    times = any(check.is_equal is False and not check.is_required for check in result.checks[-1:])
    title = f"Reproduced{', with other times' * times}" if result.is_reproduced else "NOT REPRODUCED"
    rows = tuple(
        (check.what, equal[check.is_equal], "yes" if check.is_required else "no", check.details)
        for check in result.checks
    )
    compared = Section(
        f"{title}: {result.then.name} ({result.then.run_id} of {result.then.started[:10]})",
        tuple(f"warning: {warning}" for warning in result.warnings),
        "good" if result.is_reproduced else "bad",
        Table(("what", "now", "must be equal", "details"), rows),
    )
    if not result.differences:
        return [compared, Section("The environment is the same", ("versions, machine, code and lock",))]
    facts = tuple(dataclasses.astuple(difference) for difference in result.differences)
    table = Table(("what", "then", "now", "may change"), facts)
    return [compared, Section("The environment differs", table=table)]
