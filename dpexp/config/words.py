"""Words: names, numbers and values as a message writes them."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

MAX_SHOWN = 100
"""Characters of a name or value that a message shows."""
MAX_CHARACTERS, MAX_LINES = 2000, 15
"""Of a text that a message repeats."""

Content = TypeVar("Content", bound=Hashable)


def available(names: Iterable[str]) -> str:
    """``there are block1, block2``; ``there is block1``; ``there is none``."""
    names = list(names)
    return f"there {'are' if len(names) > 1 else 'is'} {', '.join(names) or 'none'}"


def no_file(path: str | Path) -> str:
    """``there is no file data.txt in /home/me``: of a relative path with the folder at which it starts."""
    start = "" if Path(path).expanduser().is_absolute() else f" in {Path.cwd()}"
    return f"there is no file {path}{start}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``": did you mean 'block3'?"`` if the name resembles a known one, else an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f": did you mean '{close[0]}'?" if close else ""


def shortened(text: str, characters: int = MAX_CHARACTERS, lines: int = MAX_LINES) -> str:
    """The text, or where it is too long its beginning with the number of characters that it has."""
    beginning = "\n".join(text[:characters].split("\n")[:lines])
    return text if beginning == text else f"{beginning}… ({len(text)} characters)"


def shown(value: Any) -> str:
    """A value as Python writes it, short however deep or long it is."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = MAX_SHOWN
    short.maxlevel = 3
    return short.repr(value)


def merged(rows: Iterable[tuple[str, Content]]) -> list[tuple[str, Content]]:
    """(name, content) rows, each in place of those of equal content whose names differ in one index only.

    A row stands where the first of them stood.
    """
    merged_rows = [(tuple(name.split(".")), content) for name, content in rows]
    for position in range(max((len(parts) for parts, _ in merged_rows), default=0)):
        groups: dict[Hashable, list[tuple[str, ...]]] = {}
        contents: dict[Hashable, Content] = {}
        for number, (parts, content) in enumerate(merged_rows):
            is_index = position < len(parts) and parts[position].isdecimal()
            key = (parts[:position], parts[position + 1 :], content) if is_index else number
            groups.setdefault(key, []).append(parts)
            contents[key] = content
        merged_rows = [(_as_one(several, position), contents[key]) for key, several in groups.items()]
    return [(".".join(parts), content) for parts, content in merged_rows]


def _as_one(several: Sequence[tuple[str, ...]], position: int) -> tuple[str, ...]:
    """The parts of names that are equal but for an index: ``0-11``, or ``0-3,7`` where some are missing."""
    first = several[0]
    if len(several) == 1:
        return first
    numbers = sorted({int(parts[position]) for parts in several})
    return (*first[:position], ",".join(ranges(numbers)), *first[position + 1 :])


def listed(names: Iterable[str], most: int = 10) -> str:
    """``layers.0-299.norm, head``: names for a message, at most so many, those that are alike as one."""
    merged_names = [name for name, _ in merged((name, None) for name in names)]
    more = f" and {len(merged_names) - most} more" if len(merged_names) > most else ""
    return ", ".join(merged_names[:most]) + more


def ranges(numbers: Iterable[int], to: str = "-") -> list[str]:
    """``0-15`` and ``49``: numbers in order, those that follow each other as one range."""
    runs: list[range] = []
    for number in numbers:
        if runs and number == runs[-1].stop:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return [str(run[0]) if len(run) == 1 else f"{run[0]}{to}{run[-1]}" for run in runs]


def plural(count: int, noun: str) -> str:
    """``1 thread``, ``2 threads``, ``20 batches``."""
    ending = "" if count == 1 else "es" if noun.endswith(("ch", "sh", "s", "x")) else "s"
    return f"{count} {noun}{ending}"


def be(count: int) -> str:
    """The verb after so many: ``is``, ``are``."""
    return "is" if count == 1 else "are"
