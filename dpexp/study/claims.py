"""Claims judged by Records: each holds, is not shown, or is contradicted.

A claim about time is judged by an interval: the ratio of the two cells' medians (or the median itself)
with its 95% bootstrap interval, runs resampled first and the steps within them next. It holds where the
whole interval satisfies the relation, is contradicted where the whole interval breaks it, and is not
shown where the interval lies on both sides: the difference is within the noise. A claim about a fact
(shapes, equality, bytes) holds or is contradicted.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpexp.config import ConfigError
from dpexp.report import units
from dpexp.report.analysis.statistics import Interval, bootstrap_runs, ratio_of_medians
from dpexp.report.sections import Section
from dpexp.study.experiment import (
    CONTRADICTED,
    HOLDS,
    NOT_MEASURED,
    NOT_SHOWN,
    Claim,
    Experiment,
    Measured,
    measured,
)
from dpexp.study.metrics import Metric, metric, samples, value

WORST = (CONTRADICTED, NOT_MEASURED, NOT_SHOWN, HOLDS)
COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq}

Cells = Mapping[str, Sequence[Measured]]


@dataclass(frozen=True)
class Verdict:
    """What Records say of a claim: the outcome, and the figures that it comes from."""

    claim: Claim
    outcome: str
    figures: str
    is_timed: bool

    @property
    def is_as_stated(self) -> bool:
        """Whether the Records say what the answer says."""
        return self.outcome == self.claim.stated


def judge(experiment: Experiment, cells: Cells) -> list[Verdict]:
    """A verdict a claim, in order."""
    return [_judge(claim, experiment.matching(claim.of), cells) for claim in experiment.claims]


def _judge(claim: Claim, names: Sequence[str], cells: Cells) -> Verdict:
    """A claim of several cells is as good as its worst; its figures are then those of that cell."""
    kind, _ = metric(claim.metric)
    results = []
    for name in names:
        lacking = [each for each in (name, claim.against) if each and not cells.get(each)]
        if lacking:
            results.append((NOT_MEASURED, f"no finished run of {', '.join(lacking)}"))
            continue
        outcome, figures = (_timed if kind.is_timed else _fact)(claim, kind, name, cells)
        results.append((outcome, f"{name}: {figures}" if len(names) > 1 else figures))
    worst = min(results, key=lambda result: WORST.index(result[0]))
    if worst[0] == HOLDS and not kind.is_timed and len(names) > 1:
        worst = (HOLDS, f"in all {len(names)} cells")
    return Verdict(claim, *worst, kind.is_timed)


def _timed(claim: Claim, kind: Metric, name: str, cells: Cells) -> tuple[str, str]:
    own = samples(claim.metric, cells[name])
    other = samples(claim.metric, cells[claim.against]) if claim.against else own
    if not own or not other:
        return NOT_MEASURED, f"no {claim.metric} in the records"
    found = interval(own, other if claim.against else None)
    compare = COMPARE[claim.relation]
    ends = {compare(end, claim.value) for end in (found.low, found.high)}
    outcome = NOT_SHOWN if len(ends) > 1 else HOLDS if ends == {True} else CONTRADICTED
    return outcome, shown(found, units.ratio if claim.against else kind.show)


def _fact(claim: Claim, kind: Metric, name: str, cells: Cells) -> tuple[str, str]:
    try:
        own = value(claim.metric, cells[name])
        other = value(claim.metric, cells[claim.against]) if claim.against else None
    except ConfigError as error:
        return CONTRADICTED, str(error)
    if claim.against and claim.relation == "==":
        return _outcome(own == other), kind.show(own) + ("" if own == other else f", not {kind.show(other)}")
    if claim.against:
        quotient = own / other if other else float("inf")
        said = f"{units.ratio(quotient)} ({kind.show(own)} against {kind.show(other)})"
        return _outcome(COMPARE[claim.relation](quotient, claim.value)), said
    holds = own != own or COMPARE[claim.relation](own, claim.value)  # a figure that there is none of
    return _outcome(bool(holds)), kind.show(own)


def _outcome(holds: bool) -> str:
    return HOLDS if holds else CONTRADICTED


def interval(own: Sequence[Sequence[float]], other: Sequence[Sequence[float]] | None) -> Interval:
    """The ratio of the medians of two cells' runs, or the median of one cell's, with its 95% interval."""
    if other is None:
        return bootstrap_runs(_first, own, own)
    return bootstrap_runs(ratio_of_medians, own, other)


def _first(first: Any, second: Any) -> Any:
    return first


def shown(found: Interval, show: Any) -> str:
    """``1.9x (95% interval 1.7x to 2.1x)``."""
    return f"{show(found.value)} (95% interval {show(found.low)} to {show(found.high)})"


def tell(experiment: Experiment, folder: Path) -> list[Section]:
    """The verdicts on the Records of a folder, and on those committed, for a terminal."""
    cells, _ = measured(folder)
    if not cells:
        return [Section("No finished run", (f"nothing to judge in {folder}",), "bad")]
    verdicts = judge(experiment, cells)
    lines = [f"{_said(each)}: {each.claim.text} {each.figures}" for each in verdicts]
    mood = "good" if all(each.is_as_stated for each in verdicts) else "warn"
    return [Section(f"Claims of {experiment.name}, here", (experiment.question, *lines), mood)]


def _said(verdict: Verdict) -> str:
    stated = "" if verdict.is_as_stated else f" ({verdict.claim.stated} in the committed answer)"
    return verdict.outcome.upper() + stated
