"""Samples: the points of a run as its journal and ``system.jsonl`` stand now, each with the time of its line.

The values are folded like a Record, and the times of their lines like the values: so steps that a resumed run
takes back (``cut``), and lists that it sets again, leave both. A point's timestamp is therefore that of the
line which holds it, and distinguishes a step from the one that was taken back before it.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from dpexp.record.journal.durable import NotAFileError
from dpexp.record.journal.journal import JOURNAL
from dpexp.record.journal.reader import JournalReader
from dpexp.record.record import Record, Row
from dpexp.record.runs.import_journals import SYSTEM
from dpexp.tracking.content import content
from dpexp.tracking.content.content import KINDS, Point


@dataclass
class _Folded(Record):
    """A Record with the samples of ``system.jsonl``."""

    system: dict[str, list[Any]] = field(default_factory=dict)


class MetricSamples:
    """What was read so far of one run's files, in their present state."""

    def __init__(self, folder: Path) -> None:
        self.record: Record = _Folded()
        self._times: Record = _Folded()
        self._reached: dict[str, int] = {}
        """The length that a list once had, by metric."""
        self._journal = JournalReader(folder / JOURNAL)
        self._system = JournalReader(folder / SYSTEM)

    def read(self) -> bool:
        """Read what was appended. Returns whether it took samples back, or set lists of samples again."""
        replaced = False
        for entry in sorted(self._journal, key=itemgetter("seq")):
            changes = "cut" in entry or any(_kind(key) in KINDS for key in entry.get("set", {}))
            if changes:
                self._note_lengths()
            self._apply(entry)
            replaced |= changes
        with contextlib.suppress(FileNotFoundError, NotAFileError):
            for entry in self._system:  # its place in the file is its step, whichever process wrote it
                self._apply(entry | {"from": dict.fromkeys(entry.get("extend", {}), self._system.lines - 1)})
        if self._journal.entries and self._journal.lost_first:  # the line that names the run
            self.record.run_id = self.record.run_id or self._journal.path.parent.name
        return replaced

    def _apply(self, entry: Row) -> None:
        for record, each in ((self.record, entry), (self._times, _times(entry))):
            with contextlib.suppress(ValueError, TypeError, AttributeError):  # `fold` reports them
                record.apply(each)

    def _note_lengths(self) -> None:
        for key, values in content.series(self.record).items():
            self._reached[key] = max(len(values), self._reached.get(key, 0))

    def points(self, sent: Mapping[str, int]) -> Iterator[Point]:
        """The points after the last step that was ``sent`` of each metric; those of a metric by step."""
        all_times = content.series(self._times)
        for key, values in content.series(self.record).items():
            times = all_times.get(key, [])
            for step in range(sent.get(key, -1) + 1, len(values)):
                if isinstance(values[step], int | float):
                    yield Point(key, float(values[step]), _time(times, step), step)

    def system(self) -> dict[str, dict[tuple[int, int], float]]:
        """The samples that ``system.jsonl`` holds: {metric: {(step, timestamp): value}}."""
        sent = {key: len(values) for key, values in content.series(self.record).items()}
        found: dict[str, dict[tuple[int, int], float]] = {}
        for point in self.points({key: last for key, last in sent.items() if not is_system(key)}):
            found.setdefault(point.key, {})[point.step, point.timestamp] = content.stored_value(point.value)
        return found

    def is_behind(self, point: Point) -> bool:
        """Whether a step of the store is beyond all that this journal ever held: from a longer copy of it."""
        if is_system(point.key) or content.is_single(point.key):
            return False
        if not content.is_own_metric(self.record, point.key):
            return False
        return point.step >= self._length_once(point.key)

    def _length_once(self, key: str) -> int:
        """The greatest length that a list ever had."""
        return max(len(content.series(self.record).get(key, [])), self._reached.get(key, 0))

    def took_back(self, point: Point) -> bool:
        """Whether the journal took back, or has replaced, a point of the store.

        A lost line takes nothing back, and no line of ``system.jsonl`` does.
        """
        if is_system(point.key) or point.step >= self._length_once(point.key):
            return False
        values = content.series(self.record).get(point.key, [])
        if point.step >= len(values):
            return True
        value = values[point.step]
        if not isinstance(value, int | float):
            return False
        same = content.is_same_value(value, point.value)
        return not same or point.timestamp != _time(
            content.series(self._times).get(point.key, []), point.step
        )


def is_system(key: str) -> bool:
    """Whether this metric is one of ``system.jsonl``."""
    return key.startswith("system/")


def _kind(key: str) -> str:
    return key.partition(".")[0]


def _time(times: list[Any], step: int) -> int:
    """The time of a step; 0 where there is none."""
    return int(times[step] or 0) if step < len(times) else 0


def _times(entry: Row) -> Row:
    """The entry with its time in place of each of its samples."""
    at = max(0, int(entry.get("at", 0)))  # MLflow has no time before 1970

    def times(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: times(item) for name, item in value.items()}
        return [at] * len(value) if isinstance(value, list) else value

    stamped = {
        kind: {key: times(value) for key, value in entry.get(kind, {}).items() if _kind(key) in KINDS}
        for kind in ("set", "extend")
    }
    return entry | stamped
