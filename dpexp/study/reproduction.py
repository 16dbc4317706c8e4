"""Reproduction: two Records of one config, compared.

What the config decides (execution, data, devices, shapes, device map, rows of the steps, verification) must
be equal on every machine. Bits must be equal unless something that decides them differs: torch, the kind of
devices, the CPU's model and vector instructions, the number of threads.
"""

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpexp.record.record import Record, Row
from dpexp.report.section import Section, Table

BITS = ("torch", "cuda", "cpu", "cpu_capability", "threads", "accelerators")
"""What decides bits."""


@dataclass(frozen=True)
class Check:
    """One comparison of the two runs; ``is_equal`` is None if there is nothing to compare."""

    what: str
    is_equal: bool | None
    is_required: bool
    details: str


@dataclass(frozen=True)
class Reproduction:
    """Two Records of one config, compared; ``differences`` are those of what decides bits, and of the code.

    ``is_reproduced``: every required check is equal.
    """

    then: Record
    now: Record
    differences: list[tuple[str, str, str]]
    checks: list[Check]

    @property
    def is_reproduced(self) -> bool:
        return all(check.is_equal is not False for check in self.checks if check.is_required)


def compare_records(then: Record, now: Record) -> Reproduction:
    """Which parts of two Records of one config are equal, and which must be."""
    facts, others = _facts(then), _facts(now)
    rows = {"shapes": (then.shapes, now.shapes), "device map": (then.device_map, now.device_map)}
    differences = _differences(then, now)
    same_bits = not any(what in BITS for what, *_ in differences)
    checks = [_check(what, facts[what], others[what], required=True) for what in facts]
    checks += [
        _check(what, before, _known(before, after), required=True) for what, (before, after) in rows.items()
    ]
    for what in ("weights", "outputs"):
        before, after = then.digest.get(what), now.digest.get(what)
        checks.append(_check(f"{what} at the end, bit by bit", before, after, required=same_bits))
    checks.append(_check("losses", then.steps["loss"], now.steps["loss"], required=same_bits))
    return Reproduction(then, now, differences, checks)


def _facts(record: Record) -> Row:
    """What the config decides."""
    return {
        "status": record.status,
        "execution": record.execution,
        "devices": {name: record.devices.get(name) for name in ("used", "output")},
        "verification": {name: record.verification.get(name) for name in ("checked", "passed", "dtype")},
        "data": record.data.get("sha256"),
        "rows of the steps": record.steps["samples"],
        "phases": sorted(record.phases),
    }


def _known(before: Sequence[Row], after: Sequence[Row]) -> list[Row]:
    """The rows with the keys that they had then: a later dpexp may write more."""
    known = [{key: new.get(key) for key in old} for old, new in zip(before, after, strict=False)]
    return [*known, *after[len(known) :]]


def _check(what: str, then: Any, now: Any, *, required: bool) -> Check:
    """Whether both are equal, NaN and NaN as well; nothing is compared with what was not recorded."""
    if then is None or now is None:
        return Check(what, None, required, "not recorded")
    if repr(then) == repr(now):
        return Check(what, True, required, "equal")
    where = ""
    if isinstance(then, list) and len(then) == len(now):
        at = next(i for i, (old, new) in enumerate(zip(then, now, strict=True)) if repr(old) != repr(new))
        where, then, now = f"number {at}: ", then[at], now[at]
        if isinstance(then, dict):
            keys = [key for key in then if repr(then[key]) != repr(now[key])]
            then, now = ({key: row[key] for key in keys} for row in (then, now))
    return Check(what, False, required, f"{where}{reprlib.repr(then)} then, {reprlib.repr(now)} now")


def _differences(then: Record, now: Record) -> list[tuple[str, str, str]]:
    """(what, then, now) of what decides bits, and of the code; what was not recorded is left out."""
    before, after = (_environment(record) for record in (then, now))
    return [
        (what, str(old), str(after[what]))
        for what, old in before.items()
        if old is not None and old != after[what]
    ]


def _environment(record: Record) -> Row:
    git = record.environment.get("git") or {}
    commit = (
        f"{git['commit'][:12]}{' with uncommitted changes' * bool(git.get('dirty'))}"
        if git.get("commit")
        else None
    )
    return {what: record.environment.get(what) for what in BITS} | {"commit": commit}


def reproduction_sections(result: Reproduction) -> list[Section]:
    """The reproduction as report sections."""
    equal = {True: "equal", False: "DIFFERS", None: "-"}
    rows = tuple(
        (check.what, equal[check.is_equal], "yes" if check.is_required else "no", check.details)
        for check in result.checks
    )
    compared = Section(
        f"{'Reproduced' if result.is_reproduced else 'NOT REPRODUCED'}: "
        f"{result.then.name} ({result.then.run_id} of {result.then.started[:10]})",
        mood="good" if result.is_reproduced else "bad",
        table=Table(("what", "now", "must be equal", "details"), rows),
    )
    if not result.differences:
        return [compared]
    table = Table(("what", "then", "now"), tuple(result.differences))
    return [compared, Section("Code, or what decides bits, differs", table=table)]
