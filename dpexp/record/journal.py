"""The journal: the append-only file that holds a run's facts, its one writer and its readers.

Each line is a JSON object of a sequence number, the time in ms since 1970, operations on the Record, and
a checksum of all that stands before it::

    {"seq":4,"at":1767225600000,"extend":{"steps.time_ms":[0.31,0.29]},"from":{"steps.time_ms":100},
     "crc":"8d3f01aa"}

``set`` gives keys their value, ``extend`` appends to lists, of which ``from`` tells the length before, and
``cut`` shortens lists, where a run goes on from a snapshot before its last step; a dotted key names a key of
a dict. So a journal cut at any byte still holds everything before the cut, a damaged line takes nothing with
it but itself, and a step keeps its number.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from dpexp.record.durable import sync_folder
from dpexp.record.record import SCHEMA, JournalError, Row, now
from dpexp.record.redact import redact
from dpexp.record.summary import SUMMARY

JOURNAL = "journal.jsonl"
RECORD = "record.json"
RESERVE = ".reserve"
RESERVED_BYTES = 65536
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Journal:
    """The only writer of one run's ``journal.jsonl``; it holds the file's lock until it is closed.

    ``set`` and ``extend`` buffer; ``flush`` writes one line and syncs it to the disk. Raises
    JournalError when the run has a journal already, when its folder cannot be made, and when the disk
    is full: a reserve on the disk then makes room for the last lines, so that the run can end cleanly.
    """

    def __init__(self, runs: Path, run_id: str) -> None:
        if not RUN_ID.fullmatch(run_id):
            raise JournalError(f"run id {run_id!r}: letters, digits, - and _ only, 64 at most")
        self.folder = runs / run_id
        self.path = self.folder / JOURNAL
        self._file = _create(runs, self.folder)
        self._seq = 0
        self._size = 0
        self._set: Row = {}
        self._added: list[dict[str, list[Any]]] = []
        self._length: dict[str, int] = {}
        self.set(schema=SCHEMA, run_id=run_id, started=now())

    @classmethod
    def reopen(cls, folder: Path) -> Journal:
        """Go on with the journal of a run whose writer is gone; a line that was cut off is dropped.

        Its Record is then to be written anew. Raises JournalError where there is none or its writer lives.
        """
        journal = cls.__new__(cls)
        journal.folder, journal.path = folder, folder / JOURNAL
        journal._file = _taken(journal.path)
        journal._set, journal._added, journal._length = {}, [], {}
        tail = Tail(journal.path)
        for entry in tail:
            journal._length |= entry.get("cut", {})
            for key, items in entry.get("extend", {}).items():
                journal._length[key] = journal._length.get(key, 0) + len(items)
        journal._seq, journal._size = tail.lines, tail.offset
        journal._file.truncate(tail.offset)
        journal._file.seek(tail.offset)
        for stale in (RECORD, SUMMARY):
            (folder / stale).unlink(missing_ok=True)
        return journal

    def set(self, values: Mapping[str, Any] | None = None, **more: Any) -> None:
        """Give keys of the Record their value; ``{"steps.loss": …}`` for a dotted key."""
        self._set |= dict(values or {}) | more

    def extend(self, values: Mapping[str, Iterable[Any]]) -> None:
        """Append to lists of the Record."""
        added = {key: list(items) for key, items in values.items()}
        self._added.append(added)  # at once: Ctrl-C comes before or after, not between two lists

    def cut(self, lengths: Mapping[str, int]) -> None:
        """Take back what stands in lists behind so many items: the run goes on from there.

        Written at once. Raises JournalError.
        """
        self.flush()
        shorter = {key: min(count, self._length.get(key, 0)) for key, count in lengths.items()}
        try:
            self._append({}, {}, shorter)
        except OSError as error:
            raise JournalError(f"{self.path}: {error.strerror}; {self._seq} lines are safe") from error
        self._length |= shorter

    def flush(self) -> None:
        """Write what is buffered as one line, and wait until the disk has it. Raises JournalError."""
        if not self._set and not self._added:
            return
        try:
            self._append(self._set, joined(self._added))
        except OSError as error:
            (self.folder / RESERVE).unlink(missing_ok=True)
            raise JournalError(
                f"{self.path}: {error.strerror or error}; {self._seq} lines are safe"
            ) from error
        self._set, self._added = {}, []

    def close(self) -> None:
        """Flush and close; where the disk is full, what fits of the last line is kept.

        Raises JournalError when not even that could be written. The Record is then ``finish``'s to write.
        """
        if self._file.closed:
            return
        try:
            self.flush()
        except JournalError:
            self._keep_what_fits()
        finally:
            self._file.close()
            (self.folder / RESERVE).unlink(missing_ok=True)

    def _keep_what_fits(self) -> None:
        """The facts first (how the run ended), then the samples, as a whole or not."""
        pieces: list[tuple[Row, dict[str, list[Any]]]] = [(self._set, {}), ({}, joined(self._added))]
        errors = []
        for changes, additions in pieces:
            try:
                self._append(changes, additions)
            except OSError as error:
                errors.append(error)
        if len(errors) == len(pieces):
            raise JournalError(f"{self.path}: {errors[0].strerror}; {self._seq} lines are safe") from errors[
                0
            ]

    def _append(
        self, changes: Row, additions: dict[str, list[Any]], shorter: Mapping[str, int] | None = None
    ) -> None:
        """Write one line, or leave the file as it was and raise OSError, or whatever interrupts it."""
        entry: Row = {"seq": self._seq, "at": time.time_ns() // 1_000_000}
        if shorter:
            entry["cut"] = dict(shorter)
        if changes:
            entry["set"] = changes
        if additions:
            entry["extend"] = additions
            entry["from"] = {key: self._length.get(key, 0) for key in additions}
        line = seal(entry)
        try:
            written = 0
            while written < len(line):
                written += os.write(self._file.fileno(), line[written:])
            os.fsync(self._file.fileno())
        except BaseException:  # Ctrl-C too: what is still buffered must not stand there
            self._file.truncate(self._size)
            self._file.seek(self._size)
            raise
        self._seq += 1
        self._size += len(line)
        for key, items in additions.items():
            self._length[key] = self._length.get(key, 0) + len(items)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


class NullJournal(Journal):
    """The journal of a rank that does not record: it writes nothing."""

    def __init__(self) -> None:
        self.folder = self.path = Path()

    def _ignore(self, *values: Any, **named: Any) -> None:
        """Write nothing."""

    set = extend = cut = flush = close = _ignore


def _create(runs: Path, folder: Path) -> Any:
    """The new journal's file, locked, with its reserve beside it and durable names."""
    if not runs.parent.is_dir():
        raise JournalError(f"DPEXP_HOME {runs.parent} is no directory: make it, or correct DPEXP_HOME")
    try:
        runs.mkdir(exist_ok=True)
        folder.mkdir()
        file = open(folder / JOURNAL, "xb", buffering=0)  # noqa: SIM115 - closed by Journal.close
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with open(folder / RESERVE, "wb") as reserve:
            reserve.write(b"\0" * RESERVED_BYTES)
        sync_folder(folder)
        sync_folder(runs)
    except FileExistsError:
        raise JournalError(f"{folder}: this run has a journal already; a run id is used once") from None
    except OSError as error:
        raise JournalError(
            f"cannot write a journal at {folder}: {error.strerror}; DPEXP_HOME says where runs are kept"
        ) from error
    return file


def _taken(path: Path) -> Any:
    """An existing journal's file, locked for its new writer."""
    try:
        file = open(path, "r+b", buffering=0)  # noqa: SIM115 - closed by Journal.close
    except OSError as error:
        raise JournalError(f"cannot go on with {path}: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise JournalError(f"{path}: its writer is at work") from None
    return file


def is_open(path: Path) -> bool:
    """Whether the journal's writer is alive: it holds the lock until it closes the journal or dies."""
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def joined(pieces: Iterable[Mapping[str, list[Any]]]) -> dict[str, list[Any]]:
    """The lists of all pieces, each of them one after the other."""
    whole: dict[str, list[Any]] = {}
    for piece in pieces:
        for key, items in piece.items():
            whole.setdefault(key, []).extend(items)
    return whole


# --- lines ---------------------------------------------------------------------------------------


def seal(entry: Row) -> bytes:
    """One line of the journal, free of credentials, with its checksum."""
    body = redact(json.dumps(entry, separators=(",", ":"))).encode()[:-1]
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


def unseal(line: bytes) -> Row:
    """The entry of one line. Raises ValueError where the line is not what was written."""
    if not line.endswith(b"\n"):
        raise ValueError("cut off")
    body, _, crc = line.rpartition(b',"crc":"')
    if crc != b'%08x"}\n' % zlib.crc32(body):
        raise ValueError("its checksum differs, the line is lost")
    entry = json.loads(body + b"}")
    if not isinstance(entry, dict):
        raise ValueError("not an object, the line is lost")
    return entry


class Tail:
    """Reads a journal on from where it stopped, while the writer is still at it.

    A line that is not yet complete is left for the next time; a damaged one is named in ``damage``.
    ``offset`` is the first byte that was not read; ``lines`` counts those that were.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self.lines = 0
        self.damage: list[str] = []

    def __iter__(self) -> Iterator[Row]:
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self.offset += len(line)
                self.lines += 1
                try:
                    entry = unseal(line)
                except ValueError as error:
                    self.damage.append(f"line {self.lines}: {error}")
                    continue
                yield entry

    def cut(self) -> str | None:
        """What to say of the bytes after the last complete line, once the writer is gone."""
        with contextlib.suppress(FileNotFoundError):
            rest = self.path.stat().st_size - self.offset
            if rest:
                return f"line {self.lines + 1}: cut off after {rest} bytes"
        return None


def entries(path: Path, damage: list[str] | None = None) -> Iterator[Row]:
    """The journal's entries in order. A damaged line is left out and named in ``damage``."""
    tail = Tail(path)
    yield from tail
    if damage is not None:
        cut = tail.cut()
        damage += tail.damage + ([cut] if cut else [])
