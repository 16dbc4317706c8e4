"""Findings on how far a run's figures can be trusted."""

from __future__ import annotations

import statistics

from dpexp.report import units
from dpexp.report.analysis import phases as phase_tree
from dpexp.report.analysis.statistics import bootstrap, ratio
from dpexp.report.findings.evidence import ENOUGH, Evidence, Finding

NOISY = 0.2
SLOWER = 1.2
COVERED = 0.9


def noise(evidence: Evidence) -> Finding | None:
    """Equal steps take very different times."""
    usual = evidence.usual
    if usual is None or usual.n < ENOUGH or usual.iqr <= NOISY * usual.median:
        return None
    share = usual.iqr / usual.median if usual.median else float("inf")
    return Finding(
        "noise",
        f"Steps are too noisy to compare closely: half of the {usual.n} steps of {usual.rows} rows lie in a "
        "range of "
        f"{units.ms(usual.iqr)}, {units.percent(share)} of their median.",
        "Measure more --steps on a machine with nothing else to do, with fewer --threads than it has cores.",
        {"iqr_share": share, "n": float(usual.n)},
    )


def unsteady_start(evidence: Evidence) -> Finding | None:
    """The first measured steps still belong to the warm-up."""
    usual = evidence.usual
    if usual is None or usual.n < 4 * ENOUGH:
        return None
    count = max(ENOUGH // 2, usual.n // 20)
    first, rest = usual.times[:count], usual.times[count:]
    slower = bootstrap(ratio, first, rest)
    if slower.low <= SLOWER:
        return None
    return Finding(
        "unsteady_start",
        f"The first steps are not steady: the first {count} take {units.ratio(slower.value)} as long as the "
        f"{len(rest)} after them ({units.ms(statistics.median(first))} against "
        f"{units.ms(statistics.median(rest))}).",
        f"Warm up longer: --warmup {_twice(evidence.record.config.get('warmup', 0), count)}.",
        {"ratio": slower.value, "low": slower.low, "high": slower.high},
    )


def _twice(warmup: int, count: int) -> int:
    return max(2 * warmup, warmup + 4 * count)


def phase_sum(evidence: Evidence) -> Finding | None:
    """The phases are not the whole step, or timing them made it slower."""
    coverage = evidence.record.summary.get("phase_coverage")
    if coverage is not None and coverage < COVERED:
        return Finding(
            "phase_sum",
            f"The phases don't add up to the step: {units.percent(1 - coverage)} of "
            f"{units.ms(evidence.step_ms)} lies "
            "between them, mostly Python.",
            "Read the phases as parts of what they cover; a larger --batch-size makes the gaps smaller.",
            {"coverage": coverage},
        )
    return _slower_by_phase(evidence)


def _slower_by_phase(evidence: Evidence) -> Finding | None:
    usual, timed = evidence.usual, phase_tree.step_samples(evidence.record)
    if usual is None or min(usual.n, len(timed)) < ENOUGH:
        return None
    slower = bootstrap(ratio, timed, usual.times)
    if slower.low <= SLOWER:
        return None
    return Finding(
        "phase_sum",
        f"Steps timed phase by phase take {units.ms(statistics.median(timed))}, steps timed whole "
        f"{units.ms(usual.median)}: waiting for every phase costs overlap.",
        "Read the phases as shares, and the time of a step from the steps.",
        {"ratio": slower.value, "low": slower.low, "high": slower.high},
    )
