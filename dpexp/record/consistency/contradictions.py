"""Contradictions: what in a Record disagrees with the rest of it.

An edited Record passes only if every fact that follows from the edited one was edited with it. A rule yields
a text for each fault that begins with the key at fault, as ``work.rows is 10, but …``.
"""

from collections.abc import Callable, Iterator

from dpexp.config.errors import ConfigError, describe
from dpexp.record.consistency import figures, layout, machine, origin, proof, shapes, steps, timeline
from dpexp.record.record import Record

Rule = Callable[[Record], Iterator[str]]
"""What contradicts a part of the Record; nothing where it is absent, as in Records of older versions."""

RULES: tuple[Rule, ...] = (
    *origin.RULES,
    *machine.RULES,
    *proof.RULES,
    *steps.RULES,
    *timeline.RULES,
    *layout.RULES,
    *shapes.RULES,
    *figures.RULES,
)


def contradictions(record: Record) -> list[str]:
    """Every contradiction, as text. A Record of a run that has not ended has none yet."""
    if record.status == "running":
        return []
    return [text for rule in RULES for text in _found(rule, record)]


def _found(rule: Rule, record: Record) -> list[str]:
    """What one rule finds. Keys that no schema describes, as those of a config, may hold anything."""
    try:
        return list(rule(record))
    except (TypeError, ValueError, KeyError, ArithmeticError, ConfigError) as error:
        part = rule.__module__.rpartition(".")[2]
        return [f"{part}: it holds what dpexp does not write: {describe(error)}"]
