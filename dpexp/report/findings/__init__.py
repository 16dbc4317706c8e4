"""Findings: short, true sentences computed from a Record, each with its figures and what to try.

A rule takes the Evidence and returns a Finding, or None where the Record doesn't carry it. Adding one
is writing a function and naming it in RULES.
"""

from __future__ import annotations

from collections.abc import Callable

from dpexp.record import Record
from dpexp.report.findings import balance, overheads, reliability, stragglers
from dpexp.report.findings.evidence import Evidence, Finding

__all__ = ["RULES", "Finding", "find"]

RULES: tuple[Callable[[Evidence], Finding | None], ...] = (
    balance.passed_through,
    overheads.replicate,
    overheads.overhead,
    overheads.dense_gradient,
    overheads.transfer,
    balance.idle_devices,
    stragglers.straggler,
    stragglers.exposed_allreduce,
    balance.output_memory,
    reliability.unsteady_start,
    reliability.noise,
    reliability.phase_sum,
)
"""In the order in which they are told: the layout first, then how far the figures can be trusted."""


def find(record: Record) -> list[Finding]:
    """Every finding that the Record carries."""
    evidence = Evidence(record)
    return [finding for rule in RULES if (finding := rule(evidence)) is not None]
