"""Experiment: a folder that asks one question of data parallelism and answers it with committed Records.

::

    experiments/NAME/config.py              QUESTION, RUNS, CLAIMS and how the answer is shown
                     README.md              the lesson; its blocks of results are generated
                     figure.png             drawn from the Records
                     records/KIND/          the Records of the committed result, by kind of machine:
                         CELL.rN.json       one run: cell CELL, round N, as the run itself wrote it
                         sweep.json         the sweep: order, seconds of each process, environment
                         SHA256SUMS         of all of these

A *cell* is one entry of ``RUNS``; a sweep runs every cell once a round. A claim is data: the Records of any
machine show whether it holds, is not shown, or is contradicted.
"""

import hashlib
import operator
import re
import runpy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dpexp.config.errors import ConfigError, did_you_mean
from dpexp.config.run_config import RunConfig, options_with_role
from dpexp.config.strategy_options import REFERENCE
from dpexp.record.record import Record, Row
from dpexp.study.sweep.child_run import parse_record

CONFIG, README, RECORDS, SWEEP, CHECKSUMS = "config.py", "README.md", "records", "sweep.json", "SHA256SUMS"
REQUIRED = ("QUESTION", "RUNS", "CLAIMS", "ANSWER", "COLUMNS", "FIGURE")
RELATIONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq}
_CELL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Program:
    """A cell that is not a run of dpexp: a program in the experiment's folder that prints a Record."""

    file: str
    arguments: tuple[str, ...] = ()


Run = RunConfig | Program


class ClaimOutcome(StrEnum):
    """What Records show of a claim, the worst first."""

    CONTRADICTED = "contradicted"
    NOT_MEASURED = "not measured"
    NOT_SHOWN = "not shown"
    HOLDS = "holds"


@dataclass(frozen=True)
class Claim:
    """A part of the answer as data: ``metric`` of the cells ``of``, or its ratio to the cell ``against``.

    ``Claim("…", "step_ms", of="whole-8", against="single", relation=">", value=1.5)``. ``of`` may be a
    pattern (``whole-*``): then every cell that it matches must satisfy the claim. Without ``against`` the
    metric itself is compared with ``value``; with ``==`` and ``against``, the two cells' values.
    ``stated`` is the verdict that the answer gives: an honest answer may be ``not shown``.
    """

    text: str
    metric: str
    of: str
    relation: str
    value: Any = 1.0
    against: str = ""
    stated: str = ClaimOutcome.HOLDS

    def __post_init__(self) -> None:
        verdicts = (ClaimOutcome.HOLDS, ClaimOutcome.NOT_SHOWN, ClaimOutcome.CONTRADICTED)
        for name, found, known in (("relation", self.relation, RELATIONS), ("stated", self.stated, verdicts)):
            if found not in known:
                raise ConfigError(f"claim '{self.text}': {name} is '{found}'; choose from {', '.join(known)}")


@dataclass(frozen=True)
class Bars:
    """A bar for each cell: the metric's median, and a dot for each round.

    ``cells`` is {cell: its label}, as in all figures; ``limits`` is {label: value}, drawn as lines.
    """

    title: str
    metric: str
    cells: Mapping[str, str]
    limits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Dots:
    """The metric on a logarithmic axis: ``rows`` is {row: {series: cell}}. Zero is drawn at ``floor``."""

    title: str
    metric: str
    rows: Mapping[str, Mapping[str, str]]
    limits: Mapping[str, float] = field(default_factory=dict)
    floor: float = 1e-17


@dataclass(frozen=True)
class Lines:
    """The metric over x: ``series`` is {label: {x: cell}}. With ``against``, its ratio to that cell.

    In ``metric``, ``{}`` stands for the label: each line may show another figure of the same cells.
    """

    title: str
    metric: str
    x: str
    series: Mapping[str, Mapping[float, str]]
    against: Mapping[str, Mapping[float, str]] = field(default_factory=dict)
    y: str = ""


@dataclass(frozen=True)
class Splits:
    """How batches are split: rows per device, for the full batch and the last one of the epoch."""

    title: str
    cells: Mapping[str, str]


@dataclass(frozen=True)
class Curves:
    """The loss over the number of trained samples, a line for each cell, averaged over ``window`` samples."""

    title: str
    cells: Mapping[str, str]
    window: int


Figure = Bars | Dots | Lines | Splits | Curves


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep: a cell in a round."""

    cell: str
    round: int

    @property
    def name(self) -> str:
        """``whole-8.r2``: the run's name, and its file's without ``.json``."""
        return f"{self.cell}.r{self.round}"


@dataclass(frozen=True)
class MeasuredRun(PlannedRun):
    """A finished run of a sweep with its Record, and seconds of its process where they are known.

    ``looks`` are the first and the last round after which the sweep could end, if it ended as soon as its
    claims were decided.
    """

    record: Record
    wall_s: float | None = None
    looks: tuple[int, int] | None = None


RunsByCell = Mapping[str, Sequence[MeasuredRun]]


@dataclass(frozen=True)
class Experiment:
    """An experiment as its ``config.py`` defines it. ``columns`` are the result table's metrics."""

    folder: Path
    question: str
    runs: Mapping[str, Run]
    claims: Sequence[Claim]
    answer: str
    columns: Sequence[str]
    figure: Figure
    repeats: int = 5

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def title(self) -> str:
        """What names its sweeps, so that ``--resume`` finds them."""
        return self.name

    @property
    def records(self) -> Path:
        return self.folder / RECORDS

    def committed_runs(self) -> dict[str, RunsByCell]:
        """{kind of machine: its finished runs by cell} of the committed Records."""
        return {folder.name: measured_runs(folder) for folder in sorted(self.records.glob("*/"))}

    def is_reference(self, cell: str) -> bool:
        """Whether a cell runs on a single device, the reference that every sweep measures."""
        run = self.runs[cell]
        return isinstance(run, RunConfig) and run.strategy == REFERENCE

    def changed_fields(self, cell: str, recorded: Row) -> list[str]:
        """The fields of a cell's config that differ from a recorded one; none of a program.

        Where the run is filed does not count. A Record that is older than an option was made with the
        option's default.
        """
        run = self.runs[cell]
        if isinstance(run, Program):
            return []
        wanted, defaults = run.to_dict(), RunConfig(run.strategy).to_dict()
        keys = (wanted.keys() | recorded.keys()) - {*options_with_role("label"), "resume"}
        return sorted(key for key in keys if wanted.get(key) != recorded.get(key, defaults.get(key)))

    def cells_matching(self, pattern: str) -> list[str]:
        """The cells that match a pattern of a claim or of ``--only``. Raises ConfigError if none does."""
        found = [cell for cell in self.runs if fnmatchcase(cell, pattern)]
        if not found:
            cells = ", ".join(self.runs) + did_you_mean(pattern, self.runs)
            raise ConfigError(f"{self.folder / CONFIG}: no cell matches '{pattern}'; there are {cells}")
        return found


def load(folder: Path) -> Experiment:
    """The experiment of a folder. Raises ConfigError for what is missing or wrong in its config.py."""
    folder = folder.resolve()
    path = folder / CONFIG
    if not path.is_file():
        near = [config.parent.name for config in folder.parent.glob(f"*/{CONFIG}")]
        raise ConfigError(f"no experiment {folder}: it has no {CONFIG}{did_you_mean(folder.name, near)}")
    try:
        names = runpy.run_path(str(path))
    except Exception as error:
        raise ConfigError(f"{path}: {type(error).__name__}: {error}") from error
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise ConfigError(f"{path}: it must define {', '.join(missing)}")
    settings = {name.lower(): names[name] for name in (*REQUIRED, "REPEATS") if name in names}
    experiment = Experiment(folder, **settings)
    _check(experiment, path)
    return experiment


def _check(experiment: Experiment, path: Path) -> None:
    for cell, run in experiment.runs.items():
        if not _CELL.fullmatch(cell):
            raise ConfigError(f"{path}: cell '{cell}': use only letters, digits, - and _")
        if isinstance(run, Program) and not (path.parent / run.file).is_file():
            raise ConfigError(f"{path}: cell '{cell}': there is no file {run.file}")
    for claim in experiment.claims:
        for pattern in filter(None, (claim.of, claim.against)):
            experiment.cells_matching(pattern)
    if not any(map(experiment.is_reference, experiment.runs)):
        what = f"strategy {REFERENCE}, the reference that every sweep measures"
        raise ConfigError(f"{path}: no cell has {what}")


def sweep_record(folder: Path) -> Record:
    """The Record of the sweep that made the Records of a folder; an empty one before its end."""
    return read_record(folder / SWEEP) if (folder / SWEEP).is_file() else Record()


def looks_of(sweep: Row) -> tuple[int, int] | None:
    """The rounds after which a sweep of this config could end; None if their number was fixed."""
    return (int(sweep["repeats"]), int(sweep["limit"])) if sweep.get("limit") else None


def measured_runs(folder: Path, looks: tuple[int, int] | None = None) -> dict[str, list[MeasuredRun]]:
    """{cell: its finished runs by round} of a folder of Records. Raises JournalError for a newer Record.

    ``looks`` are those of a sweep that has not ended; of an ended one its Record has them.
    """
    sweep = sweep_record(folder)
    seconds = sweep.summary
    found: dict[str, list[MeasuredRun]] = {}
    for path in sorted(folder.glob("*.r[0-9]*.json")):
        cell, _, number = path.stem.rpartition(".r")
        record = read_record(path)
        if record.status == "finished":
            wall_s = seconds.get(f"wall_s.{path.stem}")
            run = MeasuredRun(cell, int(number), record, wall_s, looks or looks_of(sweep.config))
            found.setdefault(cell, []).append(run)
    for runs in found.values():
        runs.sort(key=lambda run: run.round)
    return found


def read_record(path: Path) -> Record:
    """The Record of a JSON file. Raises ConfigError for any other file, JournalError for a newer Record."""
    try:
        return parse_record(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a Record: {error}") from None


def checksums(folder: Path) -> str:
    """The SHA256SUMS of a folder's Records, as ``sha256sum`` writes it."""
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(folder.glob("*.json"))
    )
