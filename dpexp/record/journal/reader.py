"""JournalReader: the entries of a journal, and its lines that are damaged, lost, repeated or out of order.

Every line has a number (``seq``) and a checksum. So a line that is missing leaves a gap, a copied line or
file repeats its numbers, and a changed byte is one damaged line.
"""

import contextlib
import math
import zlib
from collections.abc import Iterator
from pathlib import Path

from dpexp.config.ranges import be, plural
from dpexp.record import json_text
from dpexp.record.journal.durable import private_opener
from dpexp.record.record import Row

_EARLIEST_MS = -60_000_000_000_000
_LATEST_MS = 250_000_000_000_000
"""Times in ms between which ``datetime`` has dates; a clock that is not set may be before 1970."""


class JournalReader:
    """Reads a journal from where the last iteration stopped, while the writer may append to it.

    An incomplete line is left for the next iteration; what is wrong with others is described in ``damage``.
    A repeated line is read once; one out of order is read where it stands. ``offset`` is the first byte not
    yet read; ``lines`` counts the lines that were read, damaged ones too, and ``entries`` the undamaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = self.lines = self.entries = 0
        self.damage: list[str] = []
        self._checksums: dict[int, bytes] = {}  # of the lines that were read, by their number
        self._expected = 0  # the number after the highest one
        self._unreadable = 0  # damaged lines since then
        self._first_repeat: int | None = None  # the first of the repeated lines directly before this one

    @property
    def next_number(self) -> int:
        """The number of the line that is appended next."""
        return self._expected + self._unreadable

    @property
    def lost_first(self) -> bool:
        """Whether the first line, which describes the run, is not among those read."""
        return 0 not in self._checksums

    def __iter__(self) -> Iterator[Row]:
        with open(self.path, "rb", opener=private_opener) as file:
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self.offset += len(line)
                self.lines += 1
                entry = self._read(line)
                if entry is not None:
                    self.entries += 1
                    yield entry

    def _read(self, line: bytes) -> Row | None:
        """The entry of a line; None for a damaged or repeated one."""
        try:
            entry = decode_line(line)
        except ValueError as error:
            self._report(f"line {self.lines}: {error}")
            self._unreadable += 1
            return None
        number, checksum = entry["seq"], line[-11:]
        if self._checksums.get(number) == checksum:
            self._report_repeat()
            return None
        self._check_order(number)
        self._checksums[number] = checksum
        return entry

    def _check_order(self, number: int) -> None:
        lost = number - self.next_number
        if number in self._checksums:
            self._report(f"line {self.lines}: an earlier line has its number, {number}")
        elif number < self._expected:
            self._report(f"line {self.lines}: out of order, its number is {number}")
        elif lost > 0:
            self._report(f"line {self.lines}: {plural(lost, 'line')} before it {be(lost)} lost")
        self._first_repeat = None
        if number >= self._expected:
            self._expected, self._unreadable = number + 1, 0

    def _report(self, text: str) -> None:
        self._first_repeat = None
        self.damage.append(text)

    def _report_repeat(self) -> None:
        """One report of consecutive repeated lines: of a journal that was copied to its own end."""
        if self._first_repeat is None:
            self._report(f"line {self.lines}: repeats an earlier line")
            self._first_repeat = self.lines
        else:
            self.damage[-1] = f"lines {self._first_repeat}-{self.lines}: repeat earlier lines"

    def incomplete_line(self) -> list[str]:
        """The damage, if any, after the last complete line, once the writer has ended."""
        with contextlib.suppress(FileNotFoundError):
            rest = self.path.stat().st_size - self.offset
            if rest:
                return [f"line {self.lines + 1}: cut off after {plural(rest, 'byte')}"]
        return []


def decode_line(line: bytes) -> Row:
    """The entry of one line. Raises ValueError for a line that differs from what was written."""
    body, _, crc = line.rpartition(b',"crc":"')
    if crc != b'%08x"}\n' % zlib.crc32(body):
        raise ValueError("its checksum differs, the line is lost")
    try:
        entry = json_text.loads(body + b"}")
    except RecursionError:
        raise ValueError("nested too deeply, the line is lost") from None
    if not isinstance(entry, dict):
        raise ValueError("not an object, the line is lost")
    wrong = [key for key in _IS_VALID if key in entry and not _IS_VALID[key](entry[key])]
    if "seq" not in entry or wrong:
        raise ValueError(f"{wrong[0] if wrong else 'seq'} is not what dpexp writes, the line is lost")
    return entry


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and _EARLIEST_MS <= value < _LATEST_MS  # type: ignore[arg-type,operator]


def _are_counts(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_count, value.values()))


_IS_VALID = {
    "seq": _is_count,
    "at": _is_time,
    "set": lambda value: isinstance(value, dict),
    "extend": lambda value: isinstance(value, dict) and all(isinstance(v, list) for v in value.values()),
    "from": _are_counts,
    "cut": _are_counts,
    "lengths": _are_counts,
}
"""What the parts of an entry must be."""
