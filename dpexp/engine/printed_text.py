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
from collections.abc import Iterator
from typing import TextIO, cast

MOST_LINES = 10_000
"""Lines that are remembered; after that many, lines may appear again."""


class PrintedText(io.TextIOBase):
    """Writes each line once for each source to a stream, the source before it: ``cpu:1 | (15, 5)``.

    ``flush`` writes what is not a complete line yet, also once for each source. A thread with a debugger gets
    every line: answers repeat.
    """

    def __init__(self, stream: TextIO, rank: str | None = None) -> None:
        self._stream, self._rank = stream, rank
        self._lock = threading.RLock()  # a debugger may step into this file, and prints with it
        self._unfinished: dict[int, tuple[str, list[str]]] = {}  # by thread: the source and pieces of a line
        self._known: set[tuple[str, str]] = set()
        self._open: str | None = None  # the source of the stream's last line, if it has no end yet

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def fileno(self) -> int:
        return self._stream.fileno()

    def flush(self) -> None:
        self._write_rest(threading.get_ident(), "")
        self._stream.flush()

    def finish(self) -> None:
        """Write what every thread left without the end of its line."""
        for thread in list(self._unfinished):
            self._write_rest(thread, "\n")
        with self._lock:
            if self._open is not None:
                self._stream.write("\n")
                self._open = None

    def write(self, text: str) -> int:
        *ends, rest = text.split("\n")
        source, thread = self._source(), threading.get_ident()
        for line in ends:
            _, pieces = self._unfinished.pop(thread, (source, []))
            self._write_once(source, "".join([*pieces, line]), "\n")
        if rest:
            _, pieces = self._unfinished.get(thread, (source, []))
            pieces.append(rest)
            self._unfinished[thread] = (source, pieces)
        return len(text)

    def _source(self) -> str:
        """The rank and the device of the replica that runs in this thread; empty outside of both."""
        from dpexp.devices import current_device, label

        device, replica = current_device()
        names = [f"rank {self._rank}"] if self._rank else []
        if device is not None and replica is not None:
            names.append(label(device))
        return ", ".join(names)

    def _write_rest(self, thread: int, end: str) -> None:
        """Write the pieces of a thread's unfinished line, if it has one."""
        source, pieces = self._unfinished.pop(thread, ("", []))
        if pieces:
            self._write_once(source, "".join(pieces), end)

    def _write_once(self, source: str, text: str, end: str) -> None:
        """Write a line, or its begin or rest, unless this source has written the same before."""
        with self._lock:
            if (source, text) in self._known and sys.gettrace() is None:
                return
            if len(self._known) == MOST_LINES:
                self._known.clear()
            self._known.add((source, text))
            label = f"{source} | " if source else ""
            if self._open is not None:
                label = "" if self._open == source else f"\n{label}"
            self._stream.write(f"{label}{text}{end}")
            self._open = None if end else source


@contextlib.contextmanager
def on_stderr(stream: TextIO | None = None) -> Iterator[None]:
    """Inside, what code prints goes to stderr, or another stream: stdout is for the summary or for JSON."""
    text = PrintedText(stream or sys.stderr, os.environ.get("RANK"))
    try:
        with contextlib.redirect_stdout(cast("TextIO", text)):
            yield
    finally:
        text.finish()
