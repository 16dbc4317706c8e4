"""Findings: short, true sentences computed from a Record, each with its figures and what to try."""

from __future__ import annotations

from dataclasses import dataclass, field

from dpexp.record import Record


@dataclass(frozen=True)
class Finding:
    """``text`` says what is so, with its figures; ``advice`` what to try; ``figures`` are the numbers."""

    name: str
    text: str
    advice: str
    figures: dict[str, float] = field(default_factory=dict)


def find(record: Record) -> list[Finding]:
    """Every finding that the Record carries."""
    return []
