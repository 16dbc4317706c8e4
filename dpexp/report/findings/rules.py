"""Rules: each finds one thing in a Record, or nothing. A new rule is a function in any file of this folder::

@rule(place=35, headline="long warm-up")
def long_warm_up(evidence: Evidence) -> Finding | None:
    '''What it finds, in a sentence.'''
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

from dpexp.record.record import Record
from dpexp.record.view import RecordView
from dpexp.report import findings
from dpexp.report.findings.evidence import Evidence


@dataclass(frozen=True)
class Finding:
    """``text`` states what was found, ``advice`` what to try; ``figures`` are the numbers of the text."""

    text: str
    advice: str
    figures: dict[str, float]


Find = Callable[[Evidence], Finding | None]
"""None where the Record does not show it, or lacks the data."""


@dataclass(frozen=True)
class Rule:
    """``find`` under the name of its function.

    ``place``: findings are reported in ascending order, the layout (below 100) before how far the figures can
    be trusted. ``headline``: what it has found in a few words, for a verdict in one line.
    """

    name: str
    place: int
    headline: str
    find: Find


def rule(*, place: int, headline: str) -> Callable[[Find], Rule]:
    """Make a function a rule."""
    return lambda find: Rule(find.__name__, place, headline, find)


@cache
def rules() -> tuple[Rule, ...]:
    """The rules of all files in this folder, by place."""
    modules = [
        importlib.import_module(f"{findings.__name__}.{file.name}")
        for file in pkgutil.iter_modules(findings.__path__)
    ]
    found = {value for module in modules for value in vars(module).values() if isinstance(value, Rule)}
    return tuple(sorted(found, key=lambda each: (each.place, each.name)))


def apply_rules(record: Record | RecordView) -> dict[str, Finding]:
    """{name of the rule: its finding} for every rule that finds something, by place."""
    evidence = Evidence(RecordView.of(record))
    return {each.name: found for each in rules() if (found := each.find(evidence)) is not None}


def headlines(found: Iterable[str]) -> list[str]:
    """The headlines of rules by their names."""
    by_name = {each.name: each.headline for each in rules()}
    return [by_name[name] for name in found]
