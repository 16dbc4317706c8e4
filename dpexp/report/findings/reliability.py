"""Findings on how far a run's figures can be trusted."""

import statistics

from dpexp.config.ranges import plural
from dpexp.record.figures.noise import SLOWER, Noise
from dpexp.report import units
from dpexp.report.analysis.noise import noise_text
from dpexp.report.analysis.trends import ratio_within_run
from dpexp.report.findings.evidence import ENOUGH, Evidence
from dpexp.report.findings.rules import Finding, rule

NOISY = 0.2
"""Step times whose IQR is a larger share of their median are noisy."""
COVERED = 0.9
"""Phases that cover less of a step leave out too much."""


@rule(place=0, headline="cannot be judged")
def too_noisy(evidence: Evidence) -> Finding | None:
    """Equal steps take so different times that none of them stands for the others."""
    found = evidence.view.noise
    if found is None:
        return None
    wall = evidence.view.wall_samples_per_s
    rate = f" It computes {units.number(wall)} samples/s by wall clock." if wall else ""
    return Finding(
        f"This run cannot be judged: {noise_text(found)}.{_change(evidence, found)}{rate}",
        "Run it again on an otherwise idle machine, with more --steps and fewer --threads than it has cores; "
        "nothing else is concluded from these times.",
        {"iqr": found.iqr, "median": found.median, "outliers_share": found.share, "n": float(found.n)},
    )


def _change(evidence: Evidence, noise: Noise) -> str:
    """From which step on all take longer or shorter, where that is what spreads them."""
    found = evidence.trend
    if found is None or found.at is None or not noise.is_wide:
        return ""
    return (
        f" From number {found.at} on they take {units.ms(found.after)} instead of {units.ms(found.before)}."
    )


@rule(place=150, headline="noisy steps")
def noise(evidence: Evidence) -> Finding | None:
    """Equal steps take very different times."""
    usual = evidence.usual
    if usual is None or usual.n < ENOUGH or usual.iqr <= NOISY * usual.median:
        return None
    share = usual.iqr / usual.median if usual.median else float("inf")
    return Finding(
        f"Steps are too noisy to compare closely: half of the {usual.n} steps of "
        f"{plural(usual.rows, 'row')} lie in a range of {units.ms(usual.iqr)}, "
        f"{units.percent(share)} of their median.",
        "Measure more --steps on an otherwise idle machine, with fewer --threads than it has cores.",
        {"iqr_share": share, "n": float(usual.n)},
    )


@rule(place=160, headline="phases leave time out")
def phase_sum(evidence: Evidence) -> Finding | None:
    """The phases do not cover the step, or timing them made it slower."""
    coverage = evidence.view.phase_coverage
    if evidence.timed and coverage is not None and coverage < COVERED:
        return Finding(
            f"The phases don't add up to the step: {units.percent(1 - coverage)} of "
            f"{units.ms(evidence.step_ms)} lies between them, for reasons that are not measured.",
            f"Read the phases as parts of what they cover; {evidence.how_to_see}.",
            {"coverage": coverage},
        )
    usual, timed = evidence.usual, evidence.timed
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
