"""Points: what a journal holds as metrics by step, each point with the time of its line.

So a point that is sent again is the same row of MLflow's table, whose key consists of run, name, step,
timestamp and value, and MLflow leaves it out.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from dpexp.record.journal import JournalReader
from dpexp.record.record import NOT_OF_DPEXP, Record, Row
from dpexp.tracking.content.content import Point, metric_key


class JournalPoints:
    """The points of a journal that were not sent yet, while its writer may append to it.

    ``record`` has what was read so far; ``restarts`` counts how often its lists were cut.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self.rewind()

    def rewind(self) -> None:
        """Begin again: nothing was sent."""
        self._reader, self.record, self.restarts = JournalReader(self._journal), Record(), 0
        self._lengths: dict[str, int] = {}
        self._unsent: deque[Point] = deque()

    @property
    def offset(self) -> int:
        """How many bytes of the journal were read."""
        return self._reader.offset

    def read(self) -> None:
        """Read what was appended."""
        for entry in self._reader:
            try:
                self.record.apply(entry)
                self._cut(entry.get("cut", {}))
                self._unsent += self._points(entry)
            except NOT_OF_DPEXP:  # `fold` counts the line
                continue

    def next(self, most: int) -> list[Point]:
        """The next points to send: the same ones until they are ``sent``."""
        return list(islice(self._unsent, most))

    def sent(self, count: int) -> None:
        """The store has so many of the next points."""
        for _ in range(count):
            self._unsent.popleft()

    def _cut(self, lengths: Mapping[str, int]) -> None:
        self.restarts += bool(lengths)
        for key, length in lengths.items():
            self._lengths[key] = min(length, self._lengths.get(key, 0))
            name = metric_key(key)
            self._unsent = deque(p for p in self._unsent if p.key != name or p.step < length)

    def _points(self, entry: Row) -> Iterator[Point]:
        at = max(0, int(entry.get("at", 0)))  # MLflow has no time before 1970
        for key, values in _lists(entry.get("set", {})):
            self._lengths[key] = 0
            yield from self._extended(key, values, at)
        for key, values in entry.get("extend", {}).items():
            yield from self._extended(key, values, at)

    def _extended(self, key: str, values: list[Any], at: int) -> Iterator[Point]:
        name, start = metric_key(key), self._lengths.get(key, 0)
        self._lengths[key] = start + len(values)
        for step, value in enumerate(values if name else [], start):
            if isinstance(value, int | float):
                yield Point(str(name), float(value), at, step)


def _lists(values: Row) -> Iterator[tuple[str, list[Any]]]:
    """The lists that are set, by their dotted key: ``phases`` is a dict of them."""
    for key, value in values.items():
        for name, item in value.items() if isinstance(value, dict) else ():
            if isinstance(item, list):
                yield f"{key}.{name}", item
