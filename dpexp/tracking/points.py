"""Points: what the lines of a journal say about metrics, each with the time of its line.

A line that is read again gives the same points, of which MLflow leaves out those that it has.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpexp.record.journal import JournalReader
from dpexp.record.record import NOT_OF_DPEXP, Record, Row
from dpexp.tracking import content
from dpexp.tracking.content import Point


class PointReader:
    """Reads the points of a journal. ``record`` has what the lines before ``offset`` say, without figures."""

    def __init__(self, journal: Path) -> None:
        self.record = Record()
        self._lines = JournalReader(journal)
        self._lengths: dict[str, int] = {}
        self._keys: dict[str, str | None] = {}  # of MLflow, by list of the Record

    @property
    def offset(self) -> int:
        """The first byte that was not read yet."""
        return self._lines.offset

    def read(self) -> list[tuple[int, Point]]:
        """The points of the lines that were appended, each with the byte at which its line begins."""
        points: list[tuple[int, Point]] = []
        begin = self.offset
        for entry in self._lines:
            with suppress(*NOT_OF_DPEXP):  # `fold` counts the line
                self.record.apply(entry)
                points += [(begin, point) for point in self._points(entry)]
            begin = self.offset
        return points

    def _points(self, entry: Row) -> Iterator[Point]:
        """The points of a line."""
        at = max(0, int(entry.get("at", 0)))  # MLflow has no time before 1970
        if "started" in entry.get("set", {}):
            yield from content.placeholders(self.record, at)
        for key, start, values in self._lists(entry):
            name = self._metric(key)
            for step, value in enumerate(values if name else [], start):
                if isinstance(value, int | float):
                    yield Point(str(name), content.metric_value(key, value), at, step)

    def _lists(self, entry: Row) -> Iterator[tuple[str, int, list[Any]]]:
        """(key, first step, values) of the lists that a line extends, or sets, as those in ``phases``."""
        lists: Row = dict(entry.get("extend", {}))
        for key, value in entry.get("set", {}).items():
            if isinstance(value, dict):
                lists |= {f"{key}.{name}": each for name, each in value.items() if isinstance(each, list)}
        for key, values in lists.items():
            start = self._lengths.get(key, 0) if key in entry.get("extend", {}) else 0
            self._lengths[key] = start + len(values)
            yield key, start, values

    def _metric(self, list_key: str) -> str | None:
        """The metric of a list: the same one in every delivery, as lists come in the journal's order."""
        if list_key not in self._keys:
            self._keys[list_key] = content.metric_key(list_key, self._keys.values())
        return self._keys[list_key]
