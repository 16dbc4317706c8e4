"""Names of modules that are alike, joined: ``layers.0.fc``, ``layers.1.fc`` as ``layers.0-1.fc``."""

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from dpexp.config.ranges import range_or_list

Content = TypeVar("Content", bound=Hashable)


def merged(rows: Iterable[tuple[str, Content]]) -> list[tuple[str, Content]]:
    """(name, content) rows, each in place of those of equal content whose names differ in one index only.

    A row stands where the first of them stood.
    """
    found = [(tuple(name.split(".")), content) for name, content in rows]
    for position in range(max((len(parts) for parts, _ in found), default=0)):
        groups: dict[Hashable, list[tuple[str, ...]]] = {}
        contents: dict[Hashable, Content] = {}
        for number, (parts, content) in enumerate(found):
            is_index = position < len(parts) and parts[position].isdecimal()
            key = (parts[:position], parts[position + 1 :], content) if is_index else number
            groups.setdefault(key, []).append(parts)
            contents[key] = content
        found = [(_joined(several, position), contents[key]) for key, several in groups.items()]
    return [(".".join(parts), content) for parts, content in found]


def _joined(several: Sequence[tuple[str, ...]], position: int) -> tuple[str, ...]:
    """The parts of names that are equal but for an index: ``0-11``, or ``0,2,5`` where some are missing."""
    first = several[0]
    if len(several) == 1:
        return first
    text = range_or_list(sorted({int(parts[position]) for parts in several}), ",")
    return (*first[:position], text, *first[position + 1 :])


def listed(names: Iterable[str], most: int = 10) -> str:
    """``layers.0-299.norm, head``: names for a message, at most so many, those that are alike as one."""
    found = [name for name, _ in merged((name, None) for name in names)]
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more
