"""Reproduce: run a recorded run again, and say what of it came out the same.

::

    record --> config, threads as recorded --> run in a process of its own --> record of now
       |                                                                            |
       +--> compared: environment, data, shapes, device map, bits of weights and outputs, losses, time

Shapes and device map must be equal anywhere. Bits must be equal where nothing that decides bits differs:
torch, the kind of devices, the CPU's vector instructions, the number of threads. Times never have to be.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpexp.config import ConfigError, RunConfig, home
from dpexp.config.home import ROOT
from dpexp.record import Record, Row
from dpexp.report import units
from dpexp.report.analysis.statistics import bootstrap_runs, ratio_of_medians, usual_times
from dpexp.report.sections import Section, Table
from dpexp.study.child_run import run_in_child

MATTERS: dict[str, str] = {
    "torch": "bits",
    "cuda": "bits",
    "cpu_capability": "bits",
    "threads": "bits",
    "accelerators": "bits",
    "python": "nothing expected",
    "os": "nothing expected",
    "cpu": "time",
    "cpu_count": "time",
    "host": "time",
}
"""What a difference of the environment may change; ``bits`` includes time."""


@dataclass(frozen=True)
class Difference:
    """One fact of the environment that is another one now, and what that may change."""

    what: str
    then: str
    now: str
    matters: str


@dataclass(frozen=True)
class Finding:
    """One comparison; ``is_equal`` is None where there is nothing to compare; ``must``: it has to be."""

    what: str
    is_equal: bool | None
    must: bool
    told: str


@dataclass(frozen=True)
class Reproduction:
    """What came of it. ``is_reproduced``: all that must be equal is."""

    then: Record
    now: Record
    differences: list[Difference]
    findings: list[Finding]
    warnings: list[str]

    @property
    def is_reproduced(self) -> bool:
        return all(each.is_equal is not False for each in self.findings if each.must)


def config_of(record: Record) -> Row:
    """The config that a Record was made with, its number of threads spelled out, filed under ``reproduce``.

    Raises ConfigError for a Record that is not one of a run of dpexp.
    """
    if not record.config.get("strategy"):
        raise ConfigError(f"{record.name or record.run_id} is no run that can be repeated: it has no config")
    config = {key: value for key, value in record.config.items() if value is not None}
    if record.environment.get("threads"):
        config["threads"] = record.environment["threads"]
    return config | {"experiment": "reproduce", "run_name": f"again {record.name}"}


def reproduce(record: Record, *, exact: bool = False) -> Reproduction:
    """Run it again and compare; ``exact`` from a checkout of the recorded commit.

    Raises ConfigError where the Record's config, data or commit is not to be had here.
    """
    config = config_of(record)
    if exact:
        with worktree(record) as code:
            again = _run(config, code)
    else:
        RunConfig.from_dict(config, where=f"record {record.run_id}")
        again = _run(config, ROOT)
    return compare(record, again, exact=exact)


def _run(config: Row, code: Path) -> Record:
    """The Record of one run by the dpexp that lies in ``code``. Raises ConfigError where it refuses."""
    done = run_in_child(config, {"DPEXP_HOME": str(home())}, code)
    try:
        return Record.from_dict(json.loads(done.stdout))
    except (ValueError, TypeError):
        said = (done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
        raise ConfigError(f"the run could not be repeated: {said.removeprefix('error: ')}") from None


@contextmanager
def worktree(record: Record) -> Iterator[Path]:
    """The recorded commit, checked out beside this one. Raises ConfigError where git does not have it."""
    commit = (record.environment.get("git") or {}).get("commit")
    if not commit:
        raise ConfigError("--exact: the record names no commit: it was not made from a git checkout")
    with tempfile.TemporaryDirectory(prefix="dpexp-exact-") as scratch:
        path = Path(scratch) / "code"
        done = _git("worktree", "add", "--detach", str(path), commit)
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["git is not here"])[-1]
            raise ConfigError(f"--exact: commit {commit} cannot be checked out: {said}")
        try:
            yield path
        finally:
            _git("worktree", "remove", "--force", str(path))


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)


# --- comparing -----------------------------------------------------------------------------------


def compare(then: Record, now: Record, *, exact: bool = False) -> Reproduction:
    """What of two Records of one config is equal, and what must be."""
    differing = differences(then, now)
    same_bits = not any(each.matters == "bits" for each in differing)
    findings = [
        Finding("status", then.status == now.status, True, _status(then, now)),
        Finding("data", _data(then, now), True, "the samples' SHA-256"),
        Finding("shapes", then.shapes == now.shapes, True, _rows(then.shapes, now.shapes)),
        Finding(
            "device map", then.device_map == now.device_map, True, _rows(then.device_map, now.device_map)
        ),
        *(_bits(part, then, now, same_bits) for part in ("weights", "outputs")),
        _losses(then, now, same_bits),
        Finding("time of a step", None, False, _time(then, now)),
    ]
    return Reproduction(then, now, differing, findings, _warnings(then, now, exact))


def differences(then: Record, now: Record) -> list[Difference]:
    """What of the environment is another, what matters most first; what was not recorded is left out."""
    found = []
    for key, matters in MATTERS.items():
        before, after = then.environment.get(key), now.environment.get(key)
        if before != after and before is not None:
            found.append(Difference(key, str(before), str(after), matters))
    packages, here = then.environment.get("packages") or {}, now.environment.get("packages") or {}
    for name in sorted(packages):
        if name != "torch" and packages[name] != here.get(name):
            found.append(Difference(name, packages[name], str(here.get(name)), "nothing expected"))
    code, current = (each.environment.get("git") or {} for each in (then, now))
    if code.get("commit") != current.get("commit"):
        found.append(
            Difference("commit", str(code.get("commit"))[:12], str(current.get("commit"))[:12], "anything")
        )
    return sorted(
        found, key=lambda each: ("bits", "anything", "time", "nothing expected").index(each.matters)
    )


def _status(then: Record, now: Record) -> str:
    error = f": {now.error['message']}" if now.error else ""
    return f"{then.status} then, {now.status} now{error}" if then.status != now.status else now.status


def _data(then: Record, now: Record) -> bool | None:
    before, after = then.data.get("sha256"), now.data.get("sha256")
    return None if before is None or after is None else before == after


def _rows(then: list[Row], now: list[Row]) -> str:
    """How many rows are equal, or the first that is not."""
    for number, (before, after) in enumerate(zip(then, now, strict=False)):
        if before != after:
            keys = [key for key in before if before[key] != after.get(key)]
            told = ", ".join(f"{key} {before[key]} -> {after.get(key)}" for key in keys)
            return f"row {number} (module '{before.get('module')}') differs: {told}"
    if len(then) != len(now):
        return f"{len(then)} rows then, {len(now)} now"
    return f"all {len(then)} rows equal"


def _bits(part: str, then: Record, now: Record, same_bits: bool) -> Finding:
    before, after = then.digest.get(part), now.digest.get(part)
    equal = None if before is None or after is None else before == after
    told = "not recorded" if equal is None else "bitwise equal" if equal else "other bits"
    return Finding(f"{part} at the end", equal, same_bits, told)


def _losses(then: Record, now: Record, same_bits: bool) -> Finding:
    """Losses step by step: the first place where two runs part."""
    before, after = then.steps["loss"], now.steps["loss"]
    if not before:
        return Finding("losses", None, False, "not recorded")
    for step, (old, new) in enumerate(zip(before, after, strict=False)):
        if old != new and (old == old or new == new):
            apart = abs(new - old) / abs(old) if old else abs(new)
            last = abs(after[len(after) - 1] - before[len(after) - 1]) if len(after) == len(before) else None
            end = f"; by {last:.1e} at the end" if last is not None else ""
            return Finding("losses", False, same_bits, f"part at step {step} by {apart:.1e} of the loss{end}")
    equal = len(before) == len(after)
    return Finding("losses", equal, same_bits, f"equal in all {min(len(before), len(after))} steps")


def _time(then: Record, now: Record) -> str:
    if then.execution != now.execution:
        return f"not compared: {then.execution} then, {now.execution} now"
    before, after = usual_times(then)[1], usual_times(now)[1]
    if not before or not after:
        return "no steps to compare"
    found = bootstrap_runs(ratio_of_medians, [after], [before])
    return (
        f"{units.ratio(found.value)} of then ({units.ratio(found.low)} to {units.ratio(found.high)}: 95% "
        "interval over steps)"
    )


def _warnings(then: Record, now: Record, exact: bool) -> list[str]:
    found = []
    for record, when in ((then, "the record was made"), (now, "this reproduction was made")):
        if (record.environment.get("git") or {}).get("dirty"):
            found.append(f"{when} with uncommitted changes: no commit holds that code")
    if exact and (then.environment.get("git") or {}).get("dirty"):
        found.append("--exact checked out the commit without those changes")
    if then.damage:
        found.append(f"the record was damaged: {then.damage[0]}")
    return found


# --- telling -------------------------------------------------------------------------------------


def tell(result: Reproduction) -> list[Section]:
    """The reproduction in words."""
    equal: dict[Any, str] = {True: "equal", False: "DIFFERS", None: "-"}
    title = "Reproduced" if result.is_reproduced else "NOT REPRODUCED"
    rows = tuple(
        (each.what, equal[each.is_equal], "yes" if each.must else "no", each.told) for each in result.findings
    )
    sections = [
        Section(
            f"{title}: {result.then.name} ({result.then.run_id} of {result.then.started[:10]})",
            tuple(f"warning: {each}" for each in result.warnings),
            "good" if result.is_reproduced else "bad",
            Table(("what", "now", "must be", "figures"), rows),
        )
    ]
    if result.differences:
        facts = tuple((each.what, each.then, each.now, each.matters) for each in result.differences[:20])
        more = len(result.differences) - len(facts)
        sections.append(
            Section(
                "The environment differs",
                table=Table(("what", "then", "now", "may change"), facts, max(0, more)),
            )
        )
    else:
        sections.append(Section("The environment is the same", ("versions, machine, code and lock",)))
    return sections
