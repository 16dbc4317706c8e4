"""Reproduction: two Records of one config, compared.

What the config decides (execution, data, devices, shapes, device map, rows of the steps, verification) must
be equal on every machine. Bits must be equal unless something that decides them differs: torch, the kind of
devices, the CPU's model and vector instructions, the number of threads. Times are compared on one kind of
machine, and may differ.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from dpexp.record.record import Record
from dpexp.report.section import Section, Table
from dpexp.study.reproduce import comparisons
from dpexp.study.reproduce.comparisons import BITS, Check

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


def compare_records(
    then: Record, now: Record, repeats: Sequence[Record] = (), *, exact: bool = False
) -> Reproduction:
    """Which parts of two Records of one config are equal, and which must be; ``repeats`` are for its time."""
    differences = _differences(then, now)
    same_bits = not any(difference.affects == "bits" for difference in differences)
    same_data = comparisons.equal(then.data.get("sha256"), now.data.get("sha256"))
    checks = [
        Check("status", then.status == now.status, True, _status(then, now)),
        comparisons.fact("execution", then.execution, now.execution),
        comparisons.fact("devices", comparisons.named(then), comparisons.named(now)),
        comparisons.fact("verification", comparisons.verdict(then), comparisons.verdict(now)),
        Check("data", same_data, True, "the samples' SHA-256"),
        comparisons.rows("shapes", then.shapes, now.shapes),
        comparisons.rows("device map", then.device_map, now.device_map),
        comparisons.fact("rows of the steps", then.steps["samples"], now.steps["samples"]),
        comparisons.fact("phases", sorted(then.phases), sorted(now.phases)),
        comparisons.bits("weights", then, now, same_bits),
        comparisons.bits("outputs", then, now, same_bits),
        comparisons.losses(then.steps["loss"], now.steps["loss"], same_bits),
        comparisons.time(then, [now, *repeats]),
    ]
    return Reproduction(then, now, differences, checks, _warnings(then, now, exact))


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


def _warnings(then: Record, now: Record, exact: bool) -> list[str]:
    found = [
        f"{when} with uncommitted changes: no commit holds that code"
        for record, when in ((then, "the record was made"), (now, "this reproduction was made"))
        if _is_dirty(record)
    ]
    if exact and _is_dirty(then):
        found.append("--exact checked out the commit without those changes")
    if then.damage:
        found.append(f"the record was damaged: {'; '.join(then.damage)}")
    return found


def _is_dirty(record: Record) -> bool:
    return bool((record.environment.get("git") or {}).get("dirty"))


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
