"""Finding on look-ahead: whether it is slower here than to look up each batch in its own step."""

import statistics

from dpexp.report import units
from dpexp.report.analysis.trends import ratio_within_run
from dpexp.report.findings.evidence import ENOUGH, Evidence
from dpexp.report.findings.rules import Finding, rule

APART = 1.1
"""A ratio of step times that matters, whichever is the longer."""


@rule(place=55, headline="look-ahead beside serial steps")
def look_ahead(evidence: Evidence) -> Finding | None:
    """Steps that look ahead take a different time than the phase-timed steps, which do not."""
    usual, serial = evidence.usual, evidence.timed
    if not evidence.record.config.get("pipeline") or usual is None or min(usual.n, len(serial)) < ENOUGH:
        return None
    ratio = ratio_within_run(usual.times, serial)
    if ratio.low <= APART and ratio.high >= 1 / APART:
        return None
    found, advice = "is not slower", "Compare with --serial to know the gain: phases cost overlap."
    if ratio.value > 1:
        found, advice = "is slower", "Use --serial: the lookup thread takes cores and memory from the step."
    return Finding(
        f"Looking ahead {found} here: a step takes {units.ms(usual.median)}, and "
        f"{units.ms(statistics.median(serial))} in the phase-timed steps, which look up their own batch.",
        advice,
        {"ratio": ratio.value, "low": ratio.low, "high": ratio.high},
    )
