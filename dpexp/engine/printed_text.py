"""PrintedText: what the code of a model prints, on stderr, each line once for each rank or replica.

A forward runs hundreds of times in a run, in a thread for each replica: unlabelled, its lines would be many,
in any order, and in the way of ``--json``.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from typing import TextIO

MOST_LINES = 10_000
"""Lines that are remembered; after that many, lines may appear again."""


class PrintedText(io.TextIOBase):
    """Writes each line once for each source to a stream, the source before it: ``cpu:1 | (15, 5)``."""

    def __init__(self, stream: TextIO, rank: str | None = None) -> None:
        self._stream, self._rank = stream, rank
        self._lock, self._unfinished = threading.Lock(), threading.local()
        self._known: set[tuple[str, str]] = set()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def fileno(self) -> int:
        return self._stream.fileno()

    def flush(self) -> None:
        self._stream.flush()

    def write(self, text: str) -> int:
        *lines, rest = (getattr(self._unfinished, "text", "") + text).split("\n")
        self._unfinished.text = rest
        for line in lines:
            self._write_line(self._source(), line)
        return len(text)

    def _source(self) -> str:
        """The rank and the device of the replica that runs in this thread; empty outside of both."""
        from dpexp.devices import current_device, label

        device, replica = current_device()
        names = [f"rank {self._rank}"] if self._rank else []
        if device is not None and replica is not None:
            names.append(label(device))
        return ", ".join(names)

    def _write_line(self, source: str, line: str) -> None:
        with self._lock:
            if (source, line) in self._known:
                return
            if len(self._known) == MOST_LINES:
                self._known.clear()
            self._known.add((source, line))
            self._stream.write(f"{source} | {line}\n" if source else f"{line}\n")


def on_stderr(stream: TextIO | None = None) -> contextlib.AbstractContextManager[TextIO]:
    """Inside, what code prints goes to stderr, or another stream: stdout is for the summary or for JSON."""
    text: TextIO = PrintedText(stream or sys.stderr, os.environ.get("RANK"))  # type: ignore[assignment]
    return contextlib.redirect_stdout(text)
