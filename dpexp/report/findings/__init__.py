"""Findings: short, true sentences computed from a Record, each with its figures and what to try.

``overheads`` (where the time of a step goes), ``imbalance`` (what is spread unevenly over devices and ranks),
``steadiness`` (steps that differ from the others) and ``reliability`` (how far the figures can be trusted)
hold the rules; ``evidence`` holds what rules read.
A new rule is a function of the Evidence, named in RULES, that returns None where the Record lacks the data.
``sections`` and ``tracking`` may import this package; it imports ``record``, ``analysis`` and ``units``.
"""

from collections.abc import Callable, Iterable

from dpexp.record.record import Record
from dpexp.report.findings import imbalance, overheads, reliability, steadiness
from dpexp.report.findings.evidence import Evidence, Finding

__all__ = ["RULES", "Finding", "apply_rules", "headlines"]

RULES: tuple[Callable[[Evidence], Finding | None], ...] = (
    imbalance.passed_through,
    overheads.replicate,
    overheads.overhead,
    overheads.dense_gradient,
    overheads.transfer,
    imbalance.idle_devices,
    imbalance.straggler,
    overheads.exposed_allreduce,
    imbalance.output_memory,
    steadiness.rank_outliers,
    steadiness.unsteady_start,
    steadiness.change_point,
    steadiness.drift,
    steadiness.outliers,
    reliability.noise,
    reliability.phase_sum,
)
"""In the order of the report: the layout first, then how far the figures can be trusted."""


def apply_rules(record: Record) -> dict[str, Finding]:
    """{name of the rule: its finding} for every rule that the Record supports, in the order of RULES."""
    evidence = Evidence(record)
    return {rule.__name__: finding for rule in RULES if (finding := rule(evidence)) is not None}


HEADLINES = {
    "passed_through": "no device to split over",
    "replicate": "copying parameters",
    "overhead": "mostly overhead",
    "dense_gradient": "dense gradient of a table",
    "transfer": "transfer that nothing overlaps",
    "idle_devices": "idle devices",
    "straggler": "a straggler",
    "exposed_allreduce": "all-reduce that nothing overlaps",
    "output_memory": "memory of the output device",
    "rank_outliers": "outliers of a rank",
    "unsteady_start": "unsteady start",
    "change_point": "step time changes",
    "drift": "step time drifts",
    "outliers": "outliers",
    "noise": "noisy steps",
    "phase_sum": "phases leave time out",
}
"""What a rule has found, in a few words, for a verdict in one line."""


def headlines(findings: Iterable[str]) -> list[str]:
    """What ``apply_rules`` has found in a few words each, by the names of the rules."""
    return [HEADLINES.get(name, name.replace("_", " ")) for name in findings]
