"""Claims judged by Records: each holds, is not shown, or is contradicted.

A claim about time is judged by an interval over runs (``dpexp/report/intervals.py``) of the ratio of
two cells, run by run of the same round, or of one cell's figure. It holds if the whole interval satisfies the
relation, is contradicted if the whole interval breaks it, and is not shown if the interval lies on both
sides, or if each cell ran once. A claim about a fact (shapes, equality, bytes) holds or is contradicted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpexp.config.errors import ConfigError
from dpexp.record.figures import Figure
from dpexp.report import units
from dpexp.report.intervals import interval
from dpexp.report.section import Section
from dpexp.study.experiment import RELATIONS, Claim, ClaimOutcome, Experiment
from dpexp.study.metrics import is_timed, metric, value
from dpexp.study.records import Rounds, RunsByCell


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
