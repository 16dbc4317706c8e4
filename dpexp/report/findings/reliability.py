"""Findings on how far a run's figures can be trusted."""

import statistics

from dpexp.report import units
from dpexp.report.analysis.trends import ratio_within_run
from dpexp.report.findings.evidence import ENOUGH, SLOWER, Evidence
from dpexp.report.findings.rules import Finding, rule

NOISY = 0.2
"""Step times whose IQR is a larger share of their median are noisy."""
COVERED = 0.9
"""Phases that cover less of a step leave out too much."""


@rule(place=150, headline="noisy steps")
def noise(evidence: Evidence) -> Finding | None:
    """Equal steps take very different times."""
    usual = evidence.usual
    if usual is None or usual.n < ENOUGH or usual.iqr <= NOISY * usual.median:
        return None
    share = usual.iqr / usual.median if usual.median else float("inf")
    return Finding(
        f"Steps are too noisy to compare closely: half of the {usual.n} steps of {usual.rows} rows lie "
        f"in a range of {units.ms(usual.iqr)}, {units.percent(share)} of their median.",
        "Measure more --steps on an otherwise idle machine, with fewer --threads than it has cores.",
        {"iqr_share": share, "n": float(usual.n)},
    )


@rule(place=160, headline="phases leave time out")
def phase_sum(evidence: Evidence) -> Finding | None:
    """The phases do not cover the step, or timing them made it slower."""
    coverage = evidence.view.phase_coverage
    if coverage is not None and coverage < COVERED:
        return Finding(
            f"The phases don't add up to the step: {units.percent(1 - coverage)} of "
            f"{units.ms(evidence.step_ms)} lies between them, mostly Python.",
            "Read the phases as parts of what they cover; a larger --batch-size makes the gaps smaller.",
            {"coverage": coverage},
        )
    usual, timed = evidence.usual, evidence.view.timed_steps
    if usual is None or min(usual.n, len(timed)) < ENOUGH:
        return None
    slower = ratio_within_run(timed, usual.times)
    if slower.low <= SLOWER:
        return None
    return Finding(
        f"Steps timed phase by phase take {units.ms(statistics.median(timed))}, steps timed as a whole "
        f"{units.ms(usual.median)}: waiting for every phase costs overlap.",
        "Read the phases as shares, and the step time from the steps.",
        {"ratio": slower.value, "low": slower.low, "high": slower.high},
    )
