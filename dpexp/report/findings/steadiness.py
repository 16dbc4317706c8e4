"""Findings on steps that differ in time from others: the first ones, those after a change, single ones."""

import statistics

from dpexp.record.figures.noise import outlier_limit
from dpexp.report import units
from dpexp.report.findings.evidence import ENOUGH, Evidence
from dpexp.report.findings.rules import Finding, rule

LOST = 0.05
"""Outliers are reported if they take this share of the time."""


@rule(place=110, headline="unsteady start")
def unsteady_start(evidence: Evidence) -> Finding | None:
    """The first measured steps still belong to the warm-up: each of them is an outlier among the others."""
    usual = evidence.usual
    count = evidence.view.slow_start
    if usual is None or count < 2:
        return None
    first, rest = statistics.median(usual.times[:count]), statistics.median(usual.times[count:])
    warmup = evidence.record.config.get("warmup", 0)
    return Finding(
        f"The first steps are not steady: the first {count} take {units.ratio(first / rest)} as long as the "
        f"{usual.n - count} after them ({units.ms(first)} against {units.ms(rest)}).",
        f"Warm up longer: --warmup {max(2 * warmup, warmup + 4 * count)}.",
        {"ratio": first / rest, "steps": float(count)},
    )


@rule(place=120, headline="step time changes")
def change_point(evidence: Evidence) -> Finding | None:
    """From some step on, all steps take longer, or shorter (Pettitt's test)."""
    found, usual = evidence.trend, evidence.usual
    if found is None or usual is None or found.at is None:
        return None
    slower = found.ratio > 1
    return Finding(
        f"The steps change at number {found.at} of {usual.n}: from there on they take "
        f"{units.ratio(found.ratio)} as long ({units.ms(found.after)} instead of {units.ms(found.before)}).",
        "See what else began on the machine then, or whether it became too hot; the median mixes both parts."
        if slower
        else "See what ended on the machine then, or warm up longer; the median mixes both parts.",
        {"ratio": found.ratio, "at": float(found.at), "p_value": found.p_value},
    )


@rule(place=130, headline="step time drifts")
def drift(evidence: Evidence) -> Finding | None:
    """The steps get slower, or faster, all the time (Mann and Kendall's test)."""
    found, usual = evidence.trend, evidence.usual
    if found is None or usual is None or found.at is not None:
        return None
    return Finding(
        f"The steps drift: over {usual.n} steps their time goes from {units.ms(found.before)} to "
        f"{units.ms(found.after)} ({units.ratio(found.ratio)}).",
        "Look for memory or a cache that grows, and for a machine that gets hot; with --steps the median "
        "changes.",
        {"ratio": found.ratio, "p_value": found.p_value},
    )


@rule(place=140, headline="outliers")
def outliers(evidence: Evidence) -> Finding | None:
    """A few single steps take a large part of the time."""
    usual = evidence.usual
    if usual is None or usual.n < 4 * ENOUGH or evidence.trend is not None:
        return None
    skipped, limit = evidence.view.slow_start, outlier_limit(usual.times)
    slow = [number for number, time in enumerate(usual.times) if time > limit and number >= skipped]
    lost = sum(usual.times[number] - usual.median for number in slow) / sum(usual.times)
    if not slow or lost < LOST:
        return None
    which = ", ".join(map(str, slow[:3])) + (" …" if len(slow) > 3 else "")
    return Finding(
        f"{len(slow)} of {usual.n} steps are outliers (number {which}): they take up to "
        f"{units.ms(max(usual.times[number] for number in slow))}, the median is {units.ms(usual.median)}, "
        f"and together they cost {units.percent(lost)} of the time.",
        "The median leaves them out; what they cost shows in the whole run. Look for a pause of the loader, "
        "the disk or another program.",
        {"steps": float(len(slow)), "share": lost},
    )


@rule(place=100, headline="outliers of a rank")
def rank_outliers(evidence: Evidence) -> Finding | None:
    """In single steps one rank computes much longer than usual, and the others wait."""
    slow = {}
    for rank, times in evidence.ranks_ms.items():
        if len(times) >= ENOUGH:
            limit = outlier_limit(list(times.values()))
            slow[rank] = {step for step, ms in times.items() if ms > limit}
    for rank in sorted(slow, key=lambda rank: -len(slow[rank])):
        single = slow[rank].difference(*(steps for other, steps in slow.items() if other != rank))
        if single:
            return _rank_finding(evidence, rank, single)
    return None


def _rank_finding(evidence: Evidence, rank: int, steps: set[int]) -> Finding:
    times = evidence.ranks_ms[rank]
    usual, most = statistics.median(times.values()), max(times[step] for step in steps)
    return Finding(
        f"Rank {rank} holds up {len(steps)} of {len(times)} timed steps: its forward and backward take up to "
        f"{units.ms(most)} there, {units.ms(usual)} usually, while no other rank is slower than usual.",
        "See what else runs on its host at times: a loader, a backup, another program's threads.",
        {"rank": float(rank), "steps": float(len(steps)), "most_ms": most, "usual_ms": usual},
    )
