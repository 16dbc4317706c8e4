"""Reproduce: run a recorded run again, and check which of its results are the same.

::

    record --> config, threads as recorded --> run in a child process --> new record
       |                                                                      |
       +--> compare: facts, bits of weights and outputs, losses <-------------+

What the config decides (execution, data, devices, shapes, device map, rows of the steps, verification) must
be equal on every machine. Bits must be equal unless something that decides them differs.
"""

import reprlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpexp.config.errors import ConfigError
from dpexp.config.factories import gone, live_options
from dpexp.config.names import fitted
from dpexp.config.printable import printable_line
from dpexp.config.process import home
from dpexp.config.run_config import RunConfig, known_options
from dpexp.engine.references import file_hashes, references
from dpexp.record.journal import PLAN_STRATEGY
from dpexp.record.record import Record, Row
from dpexp.report.commands import command_of
from dpexp.report.section import Section, Table
from dpexp.study.child_run import run_in_child

BITS = ("torch", "cuda", "cpu", "cpu_capability", "threads", "accelerators")
"""What decides bits."""


def reproduce(record: Record, warn: Callable[[str], None] = warnings.warn) -> "Reproduction":
    """Run it again, with the code that the Record names, and compare.

    It is delivered to MLflow if the recorded run was to be. ``warn`` is called, before anything runs, for
    each file that has changed. Raises ConfigError if its config or data is not available here.
    """
    config = known_options(config_of(record))
    if used := live_options(config):
        raise gone(f"--{used[0]} of run {record.run_id}, {config[used[0]]},")
    RunConfig.from_dict(config, where=f"record {record.run_id}")
    for change in changed_files(record):
        warn(change)
    child = run_in_child(config, {"DPEXP_HOME": str(home())})
    if child.record is None:
        raise ConfigError(f"the run could not be repeated: {child.error or 'it printed no Record'}")
    return compare_records(record, child.record)


def config_of(record: Record) -> Row:
    """The config that a Record was made with, its number of threads spelled out, filed under ``reproduce``.

    Raises ConfigError for a Record of something else than a run of dpexp.
    """
    if not record.config.get("strategy"):
        raise ConfigError(f"{record.name or record.run_id} cannot be repeated: its Record has no config")
    if record.strategy == PLAN_STRATEGY:
        raise ConfigError(
            f"{record.run_id} is a plan, which nothing has run: plan again with scripts/plan.py"
        )
    if record.is_watched:
        raise ConfigError(
            f"run {record.run_id} is a training loop that was watched, which dpexp cannot run: "
            f"run its program again, {command_of(record)}"
        )
    config = {key: value for key, value in record.config.items() if value is not None}
    if record.environment.get("threads"):
        config["threads"] = record.environment["threads"]
    return config | {"experiment": "reproduce", "run_name": fitted(f"again {record.name}", "again")}


def changed_files(record: Record) -> list[str]:
    """The files that its config names and that are different from those of the run, in words."""
    recorded = {row["path"]: row["sha256"] for row in record.files}
    present = file_hashes(references(RunConfig.from_dict(known_options(record.config))))
    return [
        printable_line(
            f"{path} has changed since the run (SHA-256 {recorded[path][:12]}… then, {now[:12]}… now): "
            "restore it, or expect other results"
        )
        for path, now in ((row["path"], row["sha256"]) for row in present)
        if recorded.get(path, now) != now
    ]


# --- comparing two Records -----------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """One comparison of the two runs."""

    what: str
    then: Any
    now: Any
    is_required: bool

    @property
    def is_equal(self) -> bool | None:
        """Whether both are equal, NaN and NaN as well; None where one was not recorded."""
        return None if self.then is None or self.now is None else repr(self.then) == repr(self.now)

    @property
    def details(self) -> str:
        """Where they differ first, and what stands there."""
        if self.is_equal is not False:
            return "equal" if self.is_equal else "not recorded"
        where, then, now = "", self.then, self.now
        if isinstance(then, list) and len(then) == len(now):
            at = next(n for n, old in enumerate(then) if repr(old) != repr(now[n]))
            where, then, now = f"number {at}: ", then[at], now[at]
        if isinstance(then, dict):
            keys = [key for key in then if repr(then[key]) != repr(now.get(key))]
            then, now = ({key: row.get(key) for key in keys} for row in (then, now))
        return f"{where}{reprlib.repr(then)} then, {reprlib.repr(now)} now"


@dataclass(frozen=True)
class Reproduction:
    """A Record compared with one of its repeat; ``differences`` are of what decides bits, and of the code."""

    then: Record
    differences: list[tuple[str, str, str]]
    checks: list[Check]

    @property
    def is_reproduced(self) -> bool:
        """Whether nothing differs that must be equal."""
        return all(check.is_equal is not False for check in self.checks if check.is_required)

    def sections(self) -> list[Section]:
        """The reproduction as report sections."""
        equal = {True: "equal", False: "DIFFERS", None: "-"}
        rows = tuple(
            (check.what, equal[check.is_equal], "yes" if check.is_required else "no", check.details)
            for check in self.checks
        )
        compared = Section(
            f"{'Reproduced' if self.is_reproduced else 'NOT REPRODUCED'}: "
            f"{self.then.name} ({self.then.run_id} of {self.then.started[:10]})",
            mood="good" if self.is_reproduced else "bad",
            table=Table(("what", "now", "must be equal", "details"), rows),
        )
        if not self.differences:
            return [compared]
        table = Table(("what", "then", "now"), tuple(self.differences))
        return [compared, Section("Code, or what decides bits, differs", table=table)]


def compare_records(then: Record, now: Record) -> Reproduction:
    """Which parts of two Records of one config are equal, and which must be."""
    before, after = _environment(then), _environment(now)
    differences = [
        (what, str(old), str(after[what]))
        for what, old in before.items()
        if old is not None and old != after[what]
    ]
    same_bits = not any(what in BITS for what, *_ in differences)
    facts, bits = _facts(now), _bits(now)
    checks = [Check(what, old, _known(old, facts[what]), True) for what, old in _facts(then).items()]
    checks += [Check(what, old, bits[what], same_bits) for what, old in _bits(then).items()]
    return Reproduction(then, differences, checks)


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
        "shapes": record.shapes,
        "device map": record.device_map,
    }


def _bits(record: Record) -> Row:
    """What the machine decides as well."""
    digests = {f"{what} at the end, bit by bit": record.digest.get(what) for what in ("weights", "outputs")}
    return digests | {"losses": record.steps["loss"]}


def _known(before: Any, after: Any) -> Any:
    """Of rows, those keys that they had then: a later dpexp may write more."""
    if not isinstance(before, list) or not all(isinstance(row, dict) for row in before):
        return after
    known = [{key: new.get(key) for key in old} for old, new in zip(before, after, strict=False)]
    return [*known, *after[len(known) :]]


def _environment(record: Record) -> Row:
    """What decides bits, and the code; what was not recorded is None."""
    git = record.environment.get("git") or {}
    dirty = " with uncommitted changes" if git.get("dirty") else ""
    commit = f"{git['commit'][:12]}{dirty}" if git.get("commit") else None
    return {what: record.environment.get(what) for what in BITS} | {"commit": commit}
