"""JournalReader: the entries of a journal, and how many of its lines cannot be read."""

import json
from collections.abc import Iterator
from pathlib import Path

from dpexp.record.record import Row


class JournalReader:
    """Reads a journal from where the last iteration stopped, while the writer may append to it.

    An incomplete line is left for the next iteration, and a line that is not a JSON object is skipped.
    ``offset`` is the first byte not yet read; ``lines`` counts the lines that were read, ``unreadable`` those
    of them that were skipped.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = self.lines = self.unreadable = 0

    def __iter__(self) -> Iterator[Row]:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self.offset += len(line)
                self.lines += 1
                try:
                    entry = json.loads(line)
                except (ValueError, RecursionError):
                    entry = None
                if isinstance(entry, dict):
                    yield entry
                else:
                    self.unreadable += 1
