"""Experiment: a folder that asks one question of data parallelism and answers it with committed Records.

::

    experiments/NAME/config.py      QUESTION, RUNS, CLAIMS and how the answer is shown
                     README.md      the lesson, written by hand
                     results.md     answer, figure, tables and claims: generated from the Records
                     figure.png     drawn from the Records, if there is a FIGURE
                     records/KIND/  the Records of the committed result, by kind of machine (``records.py``)

A cell is one entry of ``RUNS``, or of ``PROGRAMS``: a program of the experiment, which prints its Record
itself (``experiments/programs.py``). A claim is data, which the Records of any machine judge.

A claim about time is judged by an interval over runs of the ratio of two cells, run by run of the same round,
or of one cell's figure. It holds if the whole interval satisfies the relation, is contradicted if the whole
interval breaks it, and is not shown if the interval lies on both sides, or if each cell ran once. A claim
about a fact (shapes, equality, bytes) holds or is contradicted.
"""

from __future__ import annotations

import operator
import re
import runpy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.config.strategy_options import REFERENCE
from dpexp.config.words import did_you_mean, shown
from dpexp.record.figures import Figure
from dpexp.report import units
from dpexp.report.intervals import interval
from dpexp.report.section import Section
from dpexp.study.metrics import is_timed, metric, value
from dpexp.study.records import Plan, Rounds, RunsByCell, finished_runs, read_runs

CONFIG = "config.py"
_CELL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
"""The name of a cell is that of its Record's file."""
REQUIRED = ("QUESTION", "RUNS", "CLAIMS", "ANSWER", "COLUMNS")
RELATIONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq}


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
    """A figure with a bar for each cell: the metric's median, and a dot for each round.

    ``cells`` is {cell: its label}.
    """

    title: str
    metric: str
    cells: Mapping[str, str]


@dataclass(frozen=True)
class Lines:
    """A figure of the metric over x: ``series`` is {label: {x: cell}}.

    With ``against``, which is alike, it shows the ratio to that cell.
    In ``metric``, ``{}`` stands for the label: each line may show another figure of the same cells.
    """

    title: str
    metric: str
    x: str
    series: Mapping[str, Mapping[float, str]]
    against: Mapping[str, Mapping[float, str]] = field(default_factory=dict)
    y: str = ""


Drawing = Bars | Lines
"""The figure of an experiment."""


@dataclass(frozen=True)
class Experiment:
    """An experiment as its ``config.py`` defines it.

    ``programs`` are the cells that are not runs of dpexp, each with what measures it; ``columns`` are the
    result table's metrics.
    """

    folder: Path
    question: str
    runs: Mapping[str, RunConfig]
    claims: Sequence[Claim]
    answer: str
    columns: Sequence[str]
    figure: Drawing | None = None
    repeats: int = 5
    programs: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name

    @property
    def records(self) -> Path:
        """The folder of the committed Records."""
        return self.folder / "records"

    @property
    def plan(self) -> Plan:
        """What its sweeps run."""
        return Plan(self.name, self.name, self.runs, self.repeats)

    @property
    def cells(self) -> list[str]:
        """All cells, those of its programs last."""
        return [*self.runs, *self.programs]

    def committed_runs(self) -> dict[str, RunsByCell]:
        """{kind of machine: its finished runs by cell} of the committed Records."""
        return {folder.name: finished_runs(read_runs(folder)) for folder in sorted(self.records.glob("*/"))}

    def cells_matching(self, pattern: str) -> list[str]:
        """The cells that match a pattern of a claim. Raises ConfigError if none does."""
        matching = [cell for cell in self.cells if fnmatchcase(cell, pattern)]
        if not matching:
            cells = ", ".join(self.cells) + did_you_mean(pattern, self.cells)
            raise ConfigError(f"{self.folder / CONFIG}: no cell matches '{pattern}'; there are {cells}")
        return matching


def load_experiment(folder: Path) -> Experiment:
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
    known = (*REQUIRED, "FIGURE", "REPEATS", "PROGRAMS")
    experiment = Experiment(folder, **{name.lower(): names[name] for name in known if name in names})
    _check(experiment, path)
    return experiment


def _check(experiment: Experiment, path: Path) -> None:
    """Raises ConfigError for what a sweep would find only after it has measured."""
    repeats = experiment.repeats
    if type(repeats) is not int or repeats < 1:
        raise ConfigError(f"{path}: REPEATS is {shown(repeats)}: give a whole number from 1")
    for cell in experiment.cells:
        if not _CELL.fullmatch(cell):
            raise ConfigError(f"{path}: cell '{cell}': use only letters, digits, - and _")
    for claim in experiment.claims:
        for pattern in filter(None, (claim.of, claim.against)):
            experiment.cells_matching(pattern)
    runs = experiment.runs.values()
    if runs and not any(run.strategy == REFERENCE for run in runs):
        what = f"strategy {REFERENCE}, the reference that every sweep measures"
        raise ConfigError(f"{path}: no cell has {what}")


# --- verdicts on claims --------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """How Records judge a claim: the outcome, and the figures that it comes from."""

    claim: Claim
    outcome: ClaimOutcome
    figures: str
    is_timed: bool

    @property
    def is_as_stated(self) -> bool:
        """Whether the outcome is the one that the committed answer states."""
        return self.outcome == self.claim.stated


def judge(experiment: Experiment, runs: RunsByCell) -> list[Verdict]:
    """The verdicts on the experiment's claims, in their order."""
    return [_judge(claim, experiment.cells_matching(claim.of), runs) for claim in experiment.claims]


def _judge(claim: Claim, cells: Sequence[str], runs: RunsByCell) -> Verdict:
    """The verdict on a claim about several cells is that of the worst one, with its figures."""
    figure = metric(claim.metric)
    timed = is_timed(figure)
    results = []
    for cell in cells:
        missing = [name for name in (cell, claim.against) if name and not runs.get(name)]
        if missing:
            results.append((ClaimOutcome.NOT_MEASURED, f"no finished run of {', '.join(missing)}"))
            continue
        against = runs[claim.against] if claim.against else None
        outcome, figures = (_timed if timed else _fact)(claim, figure, runs[cell], against)
        results.append((outcome, f"{cell}: {figures}" if len(cells) > 1 else figures))
    worst = min(results, key=lambda result: list(ClaimOutcome).index(result[0]))
    if worst[0] == ClaimOutcome.HOLDS and not timed and len(cells) > 1:
        worst = (ClaimOutcome.HOLDS, f"in all {len(cells)} cells")
    return Verdict(claim, *worst, timed)


def _timed(claim: Claim, figure: Figure, runs: Rounds, against: Rounds | None) -> tuple[ClaimOutcome, str]:
    estimate = interval(figure, runs, against)
    if estimate is None:
        return ClaimOutcome.NOT_MEASURED, f"no {claim.metric} in the records"
    satisfied = {RELATIONS[claim.relation](end, claim.value) for end in (estimate.low, estimate.high)}
    is_open = not estimate.is_known or len(satisfied) > 1
    outcome = ClaimOutcome.NOT_SHOWN if is_open else _outcome(satisfied == {True})
    return outcome, estimate.text("x" if claim.against else figure.unit)


def _fact(claim: Claim, figure: Figure, runs: Rounds, against: Rounds | None) -> tuple[ClaimOutcome, str]:
    try:
        fact = value(figure, runs)
        baseline = value(figure, against) if against else None
    except ConfigError as error:
        return ClaimOutcome.CONTRADICTED, str(error)
    shown = units.text(fact, figure.unit)
    if not against:
        if fact != fact:  # NaN
            return ClaimOutcome.NOT_MEASURED, f"no {claim.metric} in the records"
        return _outcome(RELATIONS[claim.relation](fact, claim.value)), shown
    other = units.text(baseline, figure.unit)
    if claim.relation == "==":
        return _outcome(fact == baseline), shown if fact == baseline else f"{shown}, not {other}"
    quotient = fact / baseline if baseline else float("inf")
    holds = RELATIONS[claim.relation](quotient, claim.value)
    return _outcome(holds), f"{units.ratio(quotient)} ({shown} against {other})"


def _outcome(holds: Any) -> ClaimOutcome:
    return ClaimOutcome.HOLDS if holds else ClaimOutcome.CONTRADICTED


def claim_sections(experiment: Experiment, runs: RunsByCell) -> list[Section]:
    """The verdicts on these runs as report sections."""
    verdicts = judge(experiment, runs)
    mood = "good" if all(verdict.is_as_stated for verdict in verdicts) else "warn"
    lines = (experiment.question, *map(_line, verdicts))
    return [Section(f"Claims of {experiment.name}, judged by these runs", lines, mood)]


def _line(verdict: Verdict) -> str:
    stated = "" if verdict.is_as_stated else f" ({verdict.claim.stated} in the committed answer)"
    return f"{verdict.outcome.upper()}{stated}: {verdict.claim.text} {verdict.figures}"
