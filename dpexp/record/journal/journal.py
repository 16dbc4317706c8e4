"""The journal: the append-only file that holds a run's facts, its one writer and its readers.

Each line is a JSON object of a sequence number, the time in ms since 1970, operations on the Record, and
a checksum of all bytes before it::

    {"seq":4,"at":1767225600000,"extend":{"steps.time_ms":[0.31,0.29]},"from":{"steps.time_ms":100},
     "crc":"8d3f01aa"}

``set`` assigns values to keys, ``extend`` appends to lists whose length before is in ``from``, and ``cut``
shortens lists, when a run resumes from a snapshot before its last step. A dotted key is a key of a dict.
``shapes`` and ``device_map`` are packed: see ``packing``. The line that ends the run has the ``lengths`` of
all lists. So a journal that ends at any byte still holds everything before that byte, a lost line loses only
itself and is missed, and a step keeps its number.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import math
import os
import re
import time
import weakref
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dpexp.config.ranges import be, plural
from dpexp.record import clock
from dpexp.record.journal.durable import (
    check_writable,
    is_temporary,
    make_folder,
    open_temporary,
    private_opener,
    sync_folder,
)
from dpexp.record.journal.kept import keep
from dpexp.record.journal.reader import JournalReader
from dpexp.record.record import SCHEMA, JournalError, Row
from dpexp.record.redact import redact_entry

JOURNAL = "journal.jsonl"
RECORD = "record.json"
SWEEP_STRATEGY = "sweep"
"""The strategy of a sweep's own Record."""
COMPARISON = "report"
"""The folder in a sweep's folder with the comparison of its runs."""
RESERVE = ".reserve"
RESERVED_BYTES = 65536
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
Lists = dict[str, list[Any]]


class Journal(contextlib.AbstractContextManager["Journal"]):
    """The only writer of one run's ``journal.jsonl``; it holds the file's lock until it is closed.

    ``set`` and ``extend`` buffer; ``flush`` writes one line and syncs it to the disk. Raises JournalError
    when the run already has a journal, when its folder cannot be made, and when the disk is full: a
    reserved file then makes room for the last lines, so that the run can end cleanly.
    """

    def __init__(self, runs: Path, run_id: str) -> None:
        if not RUN_ID.fullmatch(run_id):
            raise JournalError(f"run id {run_id!r}: letters, digits, - and _ only, 64 at most")
        file, self._new = _create(runs, runs / run_id)
        self._open(runs / run_id, file)
        self.set(schema=SCHEMA, run_id=run_id, started=clock.now())

    @classmethod
    def reopen(cls, folder: Path) -> Journal:
        """Append to the journal of a run whose writer has ended; an incomplete last line is dropped.

        ``finish`` must then write the Record again. Raises JournalError where there is no journal or its
        writer is alive.
        """
        journal = cls.__new__(cls)
        journal._open(folder, _open_locked(folder / JOURNAL))
        reader, last_at = JournalReader(journal.path), -math.inf
        for entry in reader:
            first = journal._lengths | entry.get("cut", {}) | entry.get("from", {})
            ends = {key: first.get(key, 0) + len(items) for key, items in entry.get("extend", {}).items()}
            journal._lengths |= entry.get("cut", {}) | ends | entry.get("lengths", {})
            last_at = entry.get("at", last_at)
        clock.restart(last_at)
        journal._seq, journal._size = reader.next_number, reader.offset
        keep(folder / RECORD, folder.name, journal.path.stat().st_size)
        journal._file.truncate(reader.offset)
        journal._file.seek(reader.offset)
        with contextlib.suppress(OSError):  # the disk is full: what can be written still is
            _reserve(folder)
        (folder / RECORD).unlink(missing_ok=True)
        return journal

    def _open(self, folder: Path, file: Any) -> None:
        self.folder, self.path, self._file = folder, folder / JOURNAL, file
        _close_in_forked_children()
        _open_files.add(file)
        self._seq = self._size = 0
        self._set: Row = {}
        self._extended: list[Lists] = []
        self._lengths: dict[str, int] = {}

    def set(self, values: Mapping[str, Any] | None = None, **named: Any) -> None:
        """Assign values to keys of the Record; ``{"steps.loss": …}`` for a dotted key."""
        self._set |= dict(values or {}) | named

    def extend(self, values: Mapping[str, Iterable[Any]]) -> None:
        """Append to lists of the Record."""
        lists = {key: list(items) for key, items in values.items()}
        self._extended.append(lists)  # all at once: Ctrl-C cannot come between two lists

    def truncate(self, lengths: Mapping[str, int]) -> None:
        """Shorten lists of the Record, written at once: the run resumes there. Raises JournalError.

        ``metrics`` stands for the lists of all metrics. Those of steps are that long even where the journal
        has lost lines of them.
        """
        self.flush()
        metrics = [key for key in self._lengths if key.startswith("metrics.")]
        shorter = {
            each: length if each.startswith("steps.") else min(length, self._lengths.get(each, 0))
            for key, length in lengths.items()
            for each in (metrics if key == "metrics" else [key])
        }
        self._write(cut=shorter)
        self._lengths |= shorter

    def flush(self) -> None:
        """Write the buffer as one line and sync it to the disk. Raises JournalError."""
        if not self._set and not self._extended:
            return
        self._write(self._set, _concatenate(self._extended))
        self._set, self._extended = {}, []

    def close(self) -> None:
        """Flush and close; on a full disk, write the part of the last line that has room.

        Raises JournalError when no part could be written. ``finish`` writes the Record.
        """
        if self._file.closed:
            return
        try:
            self.flush()
        except JournalError:
            self._append_separately()
        finally:
            self._file.close()
            (self.folder / RESERVE).unlink(missing_ok=True)

    def __exit__(self, *exception: object) -> None:
        self.close()

    def abandon(self) -> None:
        """Close a new journal of which no line could be written, and remove the folders made for it."""
        self._file.close()
        _remove(self._new, self.folder)

    def _append_separately(self) -> None:
        """Two lines: first the values (how the run ended), then the samples."""
        errors = []
        for values, lists in ((self._set, None), (None, _concatenate(self._extended))):
            try:
                self._write(values, lists)
            except JournalError as error:
                errors.append(error)
        if len(errors) == 2:
            raise errors[0]

    def _write(
        self, values: Row | None = None, lists: Lists | None = None, cut: dict[str, int] | None = None
    ) -> None:
        """``_append``, with JournalError for OSError; frees the reserved file for the next attempt."""
        try:
            self._append(values, lists, cut)
        except OSError as error:
            (self.folder / RESERVE).unlink(missing_ok=True)
            raise JournalError(
                f"{self.path}: {error.strerror or error}; {plural(self._seq, 'line')} {be(self._seq)} safe"
            ) from error

    def _append(self, values: Row | None, lists: Lists | None, cut: dict[str, int] | None) -> None:
        """Write one line; on any exception, OSError or interrupt, restore the file and raise it."""
        entry: Row = {"seq": self._seq, "at": clock.now_ms()}
        if cut:
            entry["cut"] = cut
        if values:
            entry["set"] = values
        if lists:
            entry["extend"] = lists
            entry["from"] = {key: self._lengths.get(key, 0) for key in lists}
        lengths = self._lengths | {
            key: self._lengths.get(key, 0) + len(items) for key, items in (lists or {}).items()
        }
        if values and values.get("ended"):
            entry["lengths"] = lengths
        line = encode_line(entry)
        try:
            written = 0
            while written < len(line):
                written += os.write(self._file.fileno(), line[written:])
            os.fsync(self._file.fileno())
        except BaseException:  # Ctrl-C too: the buffer will be written again
            self._file.truncate(self._size)
            self._file.seek(self._size)
            raise
        self._seq += 1
        self._size += len(line)
        self._lengths = lengths


class NullJournal(Journal):
    """The journal of a rank that does not record: it writes nothing."""

    def __init__(self) -> None:
        self.folder = self.path = Path()

    def _ignore(self, *values: Any, **named: Any) -> None:
        """Write nothing."""

    set = extend = truncate = flush = close = _ignore


def _create(runs: Path, folder: Path) -> tuple[Any, list[Path]]:
    """The new journal's file, locked, with its reserved file beside it and durable names; or no folder.

    Also the folders that were made, the innermost first.
    """
    check_writable(runs)
    new = [path for path in (folder, runs, runs.parent) if not path.exists()]
    try:
        make_folder(runs, exist_ok=True)
        make_folder(folder)
        temporary, file = open_temporary(folder / JOURNAL)
        _lock(file)
        temporary.rename(folder / JOURNAL)  # locked by then: no reader finds it without a writer
        _reserve(folder)
        sync_folder(folder)
        sync_folder(runs)
    except FileExistsError:
        raise JournalError(f"{folder}: this run has a journal already; a run id is used once") from None
    except OSError as error:
        _remove(new, folder)
        raise JournalError(
            f"cannot write a journal at {folder}: {error.strerror}; DPEXP_HOME is the folder of the runs"
        ) from error
    return file, new


def _remove(new: Iterable[Path], folder: Path) -> None:
    """Remove the new folder of a run that cannot begin, and other new ones where they are empty."""
    for path in new:
        with contextlib.suppress(OSError):
            for name in os.listdir(path) if path == folder else ():
                if name in (JOURNAL, RESERVE) or is_temporary(name):
                    (path / name).unlink()
            path.rmdir()


def _reserve(folder: Path) -> None:
    """Keep room on the disk for the last lines. Raises OSError."""
    with open(folder / RESERVE, "wb", opener=private_opener) as reserve:
        reserve.write(b"\0" * RESERVED_BYTES)


def _open_locked(path: Path) -> Any:
    """An existing journal's file, locked for its new writer."""
    try:
        file = open(path, "r+b", 0, opener=private_opener)  # noqa: SIM115 - closed by Journal.close
    except OSError as error:
        raise JournalError(f"cannot append to {path}: {error.strerror}") from error
    try:
        _lock(file)
    except BlockingIOError:
        file.close()
        raise JournalError(f"{path}: another process is writing it") from None
    return file


def _lock(file: Any) -> None:
    """Lock a journal for its writer; a reader holds it for a moment. Raises BlockingIOError for a writer."""
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # a writer lets no reader in
            time.sleep(0.001)


_open_files: weakref.WeakSet[Any] = weakref.WeakSet()


@functools.cache
def _close_in_forked_children() -> None:
    """A process that user code forks must not hold the lock, or the run seems alive after its death."""
    os.register_at_fork(after_in_child=lambda: [file.close() for file in list(_open_files)])


def is_open(path: Path) -> bool:
    """Whether the journal's writer is alive: it holds the lock until it closes the journal or dies."""
    with open(path, "rb", opener=private_opener) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _concatenate(buffered: Iterable[Lists]) -> Lists:
    """The buffered lists by key, in the order in which they were buffered."""
    concatenated: Lists = {}
    for lists in buffered:
        for key, items in lists.items():
            concatenated.setdefault(key, []).extend(items)
    return concatenated


# --- lines ---------------------------------------------------------------------------------------


def encode_line(entry: Row) -> bytes:
    """One line of the journal, without credentials, with its checksum."""
    body = json.dumps(redact_entry(entry), separators=(",", ":")).encode()[:-1]
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)
