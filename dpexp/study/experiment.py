"""Experiment: a folder that asks one question of data parallelism and answers it with committed Records.

::

    experiments/NAME/config.py              QUESTION, RUNS, CLAIMS and how the answer is shown
                     README.md              the lesson; what stands in it of results is generated
                     figure.png             drawn from the Records
                     records/KIND/          the Records of the committed result, by kind of machine:
                         CELL.rN.json       one run: cell CELL, round N, as the run itself wrote it
                         sweep.json         the sweep: order, seconds of each whole process, environment
                         SHA256SUMS         of all of these

A *cell* is one entry of ``RUNS``; a sweep runs every cell once a round. A claim is data, so that a machine
can say of it: holds, not shown, contradicted.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dpexp.config import REFERENCE, ConfigError, RunConfig, did_you_mean, options_with_role
from dpexp.record import Record, Row

CONFIG, README, RECORDS, SWEEP, SUMS = "config.py", "README.md", "records", "sweep.json", "SHA256SUMS"
RELATIONS = ("<", "<=", ">", ">=", "==")
HOLDS, NOT_SHOWN, CONTRADICTED, NOT_MEASURED = "holds", "not shown", "contradicted", "not measured"
_CELL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_SLOT = re.compile(r"(?P<cell>.+)\.r(?P<round>\d+)")


@dataclass(frozen=True)
class Program:
    """A cell that is no run of dpexp: a program in the experiment's folder that prints a Record as JSON."""

    file: str
    words: tuple[str, ...] = ()


Run = RunConfig | Program


@dataclass(frozen=True)
class Claim:
    """What the answer says, as data: ``metric`` of the cells ``of``, or its ratio to the cell ``against``.

    ``Claim("…", "step_ms", of="whole-8", against="single", relation=">", value=1.5)``; ``of`` may be a
    pattern (``whole-*``): the claim is then made of every cell that it matches. Without ``against`` the
    metric itself is compared with ``value``; with ``==`` and ``against``, the two cells' values.
    ``stated`` is the verdict that the answer gives: an honest answer may be ``not shown``.
    """

    text: str
    metric: str
    of: str
    relation: str
    value: Any = 1.0
    against: str = ""
    stated: str = HOLDS

    def __post_init__(self) -> None:
        if self.relation not in RELATIONS:
            raise ConfigError(f"claim '{self.text}': relation '{self.relation}'; there is {RELATIONS}")
        if self.stated not in (HOLDS, NOT_SHOWN, CONTRADICTED):
            raise ConfigError(
                f"claim '{self.text}': stated '{self.stated}'; there is holds, not shown, contradicted"
            )


@dataclass(frozen=True)
class Bars:
    """A bar a cell: the metric's median, a dot for each round, in the order of ``cells``."""

    title: str
    metric: str
    cells: Mapping[str, str]
    """{cell: its label}"""
    limits: Mapping[str, float] = field(default_factory=dict)
    """{what it means: value}, drawn as lines"""


@dataclass(frozen=True)
class Dots:
    """The metric on a logarithmic axis, a row of dots for each of ``rows``: one a series.

    What is zero stands at ``floor``.
    """

    title: str
    metric: str
    rows: Mapping[str, Mapping[str, str]]
    """{row: {series: cell}}"""
    limits: Mapping[str, float] = field(default_factory=dict)
    floor: float = 1e-17


@dataclass(frozen=True)
class Lines:
    """The metric over x, a line a series; with ``against`` its ratio to the cell that stands there."""

    title: str
    metric: str
    x: str
    series: Mapping[str, Mapping[float, str]]
    """{label: {x: cell}}"""
    against: Mapping[str, Mapping[float, str]] = field(default_factory=dict)
    y: str = ""


@dataclass(frozen=True)
class Splits:
    """How batches fall into replicas: rows a device, for the full batch and the last one of the epoch."""

    title: str
    cells: Mapping[str, str]


@dataclass(frozen=True)
class Curves:
    """The loss over the samples seen, a line a cell, averaged over ``window`` samples."""

    title: str
    cells: Mapping[str, str]
    window: int


Figure = Bars | Dots | Lines | Splits | Curves


@dataclass(frozen=True)
class Experiment:
    """One experiment, as its ``config.py`` defines it. ``columns`` are the result table's metrics."""

    folder: Path
    question: str
    runs: Mapping[str, Run]
    claims: tuple[Claim, ...]
    answer: str
    columns: tuple[str, ...]
    figure: Figure
    repeats: int = 3

    @property
    def name(self) -> str:
        return self.folder.name

    def kinds(self) -> list[str]:
        """The kinds of machine that there are committed Records of."""
        there = self.folder / RECORDS
        return sorted(path.name for path in there.iterdir() if path.is_dir()) if there.is_dir() else []

    def matching(self, pattern: str) -> list[str]:
        """The cells that a pattern of a claim or of ``--only`` names. Raises ConfigError for none."""
        found = [cell for cell in self.runs if fnmatchcase(cell, pattern)]
        if not found:
            raise ConfigError(
                f"{self.folder / CONFIG}: no cell '{pattern}'; there is {', '.join(self.runs)}"
                f"{did_you_mean(pattern, self.runs)}"
            )
        return found


@dataclass(frozen=True)
class Measured:
    """One run of a sweep: its cell, its round, its Record, and seconds of its whole process if known."""

    cell: str
    round: int
    record: Record
    wall_s: float | None = None


def slot(cell: str, round: int) -> str:
    """The name of one run of a sweep: ``whole-8.r2``."""
    return f"{cell}.r{round}"


def load(folder: Path) -> Experiment:
    """The experiment of a folder. Raises ConfigError that says what its config.py lacks, or has wrong."""
    folder = folder.resolve()
    path = folder / CONFIG
    if not path.is_file():
        near = [each.parent.name for each in folder.parent.glob(f"*/{CONFIG}")]
        raise ConfigError(f"no experiment {folder}: there is no {CONFIG}{did_you_mean(folder.name, near)}")
    names = vars(_module(path))
    missing = [
        key for key in ("QUESTION", "RUNS", "CLAIMS", "ANSWER", "COLUMNS", "FIGURE") if key not in names
    ]
    if missing:
        raise ConfigError(f"{path}: it must define {', '.join(missing)}")
    made = Experiment(
        folder,
        names["QUESTION"],
        names["RUNS"],
        tuple(names["CLAIMS"]),
        names["ANSWER"],
        tuple(names["COLUMNS"]),
        names["FIGURE"],
        names.get("REPEATS", 3),
    )
    _check(made, path)
    return made


def _module(path: Path) -> Any:
    found = importlib.util.spec_from_file_location(f"dpexp_experiment_{path.parent.name}", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    try:
        found.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{path}: {type(error).__name__}: {error}") from error
    return module


def _check(experiment: Experiment, path: Path) -> None:
    for cell, run in experiment.runs.items():
        if not _CELL.fullmatch(cell):
            raise ConfigError(f"{path}: cell '{cell}': letters, digits, - and _ only")
        if isinstance(run, Program) and not (path.parent / run.file).is_file():
            raise ConfigError(f"{path}: cell '{cell}': there is no file {run.file}")
    for claim in experiment.claims:
        for pattern in filter(None, (claim.of, claim.against)):
            experiment.matching(pattern)
    if not any(is_reference(run) for run in experiment.runs.values()):
        raise ConfigError(f"{path}: no cell of strategy single, the reference that every sweep measures anew")


def is_reference(run: Run) -> bool:
    """Whether a cell is the single device, which every sweep measures anew."""
    return isinstance(run, RunConfig) and run.strategy == REFERENCE


# --- records -------------------------------------------------------------------------------------


def measured(folder: Path) -> tuple[dict[str, list[Measured]], Record | None]:
    """({cell: its runs by round}, the sweep's Record) of a folder of Records; empty where none are.

    Runs that did not finish are left out. Raises JournalError for a Record of a newer dpexp.
    """
    sweep = read(folder / SWEEP) if (folder / SWEEP).is_file() else None
    found: dict[str, list[Measured]] = {}
    for path in sorted(folder.glob("*.json")):
        named = _SLOT.fullmatch(path.stem)
        record = read(path) if named else None
        if named is None or record is None or record.status != "finished":
            continue
        wall = sweep.summary.get(f"wall_s.{path.stem}") if sweep is not None else None
        found.setdefault(named["cell"], []).append(Measured(named["cell"], int(named["round"]), record, wall))
    for runs in found.values():
        runs.sort(key=lambda run: run.round)
    return found, sweep


def read(path: Path) -> Record:
    """The Record of a JSON file. Raises ConfigError for a file that is none, JournalError for a newer one."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a Record: {error}") from None
    if not isinstance(data, dict) or "run_id" not in data:
        raise ConfigError(f"{path}: not a Record: it has no run_id")
    return Record.from_dict(data)


def filed(config: RunConfig, experiment: str, run_name: str) -> RunConfig:
    """The config with where its run is filed."""
    return replace(config, experiment=experiment, run_name=run_name)


def differences(config: RunConfig, recorded: Row) -> list[str]:
    """The fields in which a recorded config is another one; where the run is filed does not count."""
    wanted, labels = config.to_dict(), options_with_role("label")
    return sorted(
        key
        for key in wanted.keys() | recorded.keys()
        if key not in labels and wanted.get(key) != recorded.get(key, _default(config, key))
    )


def _default(config: RunConfig, key: str) -> Any:
    """What an option means in a Record that is older than the option: its default."""
    return RunConfig(config.strategy).to_dict().get(key)


def sums(folder: Path) -> str:
    """The SHA256SUMS of a folder's Records, as ``sha256sum`` writes it."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}"
        for path in sorted(folder.glob("*.json"))
    ]
    return "\n".join(lines) + "\n"
