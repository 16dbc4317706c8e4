"""The journal: the append-only file that holds a run's facts, its one writer, and the reader of its entries.

Each line is a JSON object of the time in ms since 1970 and operations on the Record::

    {"at":1767225600000,"extend":{"steps.time_ms":[0.31,0.29]}}

``set`` assigns values to keys, ``extend`` appends to lists, and ``cut`` shortens lists, when ranks restart
and the run begins again. A dotted key is a key of a dict. ``shapes`` and ``device_map`` are packed: see
``packing``. So a journal that ends at any byte still holds every complete line before that byte.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import re
import secrets
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpexp.config.ranges import be, plural
from dpexp.record.files import JournalError, check_writable, make_folder, sync_folder
from dpexp.record.redact import redact_entry

SCHEMA = 1
JOURNAL = "journal.jsonl"
RECORD = "record.json"
SWEEP_STRATEGY = "sweep"
"""The strategy of a sweep's own Record."""
COMPARISON = "report"
"""The folder in a sweep's folder with the comparison of its runs."""
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
Lists = dict[str, list[Any]]


class Journal(contextlib.AbstractContextManager["Journal"]):
    """The only writer of one run's ``journal.jsonl``; it holds the file's lock until it is closed.

    ``set`` and ``extend`` buffer; ``flush`` writes one line and syncs it to the disk. Raises JournalError
    when the run already has a journal, when its folder cannot be made, and when the disk is full.
    """

    def __init__(self, runs: Path, run_id: str) -> None:
        if not RUN_ID.fullmatch(run_id):
            raise JournalError(f"run id {run_id!r}: letters, digits, - and _ only, 64 at most")
        file, self._new = _create(runs, runs / run_id)
        self._open(runs / run_id, file)
        self.set(schema=SCHEMA, run_id=run_id, started=now())

    @classmethod
    def reopen(cls, folder: Path) -> Journal:
        """Append to the journal of a run that begins again: its lists are cut to nothing.

        An incomplete last line is dropped. Raises JournalError where there is no journal or its writer is
        alive.
        """
        journal = cls.__new__(cls)
        journal._open(folder, _open_locked(folder / JOURNAL))
        reader = JournalReader(journal.path)
        lists = {key for entry in reader for key in entry.get("extend", ()) if key.startswith("steps.")}
        journal._lines, journal._size = reader.lines, reader.offset
        journal._file.truncate(reader.offset)
        journal._file.seek(reader.offset)
        (folder / RECORD).unlink(missing_ok=True)
        if lists:
            journal._write({"cut": dict.fromkeys(sorted(lists), 0)})
        return journal

    def _open(self, folder: Path, file: Any) -> None:
        self.folder, self.path, self._file = folder, folder / JOURNAL, file
        _close_in_forked_children()
        _open_files.add(file)
        self._lines = self._size = 0
        self._set: dict[str, Any] = {}
        self._extended: list[Lists] = []

    def set(self, values: Mapping[str, Any] | None = None, **named: Any) -> None:
        """Assign values to keys of the Record; ``{"steps.loss": …}`` for a dotted key."""
        self._set |= dict(values or {}) | named

    def extend(self, values: Mapping[str, Iterable[Any]]) -> None:
        """Append to lists of the Record."""
        lists = {key: list(items) for key, items in values.items()}
        self._extended.append(lists)  # all at once: Ctrl-C cannot come between two lists

    def flush(self) -> None:
        """Write the buffer as one line and sync it to the disk. Raises JournalError."""
        buffered = {"set": self._set, "extend": _concatenate(self._extended)}
        entry = {operation: values for operation, values in buffered.items() if values}
        if entry:
            self._write(entry)
            self._set, self._extended = {}, []

    def close(self) -> None:
        """Flush and close; on a full disk at least write how the run ended, where that has room.

        Raises JournalError when even that could not be written. ``finish`` writes the Record.
        """
        if self._file.closed:
            return
        try:
            self.flush()
        except JournalError:
            self._extended = []
            self.flush()
        finally:
            self._file.close()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def abandon(self) -> None:
        """Close a new journal of which no line could be written, and remove the folders made for it."""
        self._file.close()
        _remove(self._new, self.folder)

    def _write(self, entry: dict[str, Any]) -> None:
        """Write one line; on any exception, also an interrupt, restore the file and raise it."""
        line = encode_line({"at": now_ms(), **entry})
        try:
            written = 0
            while written < len(line):
                written += os.write(self._file.fileno(), line[written:])
            os.fsync(self._file.fileno())
        except BaseException as error:  # Ctrl-C too: the buffer will be written again
            self._file.truncate(self._size)
            self._file.seek(self._size)
            if not isinstance(error, OSError):
                raise
            safe = f"{plural(self._lines, 'line')} {be(self._lines)} safe"
            raise JournalError(f"{self.path}: {error.strerror or error}; {safe}") from error
        self._lines += 1
        self._size += len(line)


class NullJournal(Journal):
    """The journal of a rank that does not record: it writes nothing."""

    def __init__(self) -> None:
        self.folder = self.path = Path()

    def _ignore(self, *values: Any, **named: Any) -> None:
        """Write nothing."""

    set = extend = flush = close = _ignore


def _create(runs: Path, folder: Path) -> tuple[Any, list[Path]]:
    """The new journal's file, locked and with a durable name; or no folder.

    Also the folders that were made, the innermost first.
    """
    check_writable(runs)
    new = [path for path in (folder, runs, runs.parent) if not path.exists()]
    try:
        make_folder(runs, exist_ok=True)
        make_folder(folder)
        starting = folder / f".{JOURNAL}"
        file = open(os.open(starting, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "r+b", 0)  # noqa: SIM115
        _lock(file)
        starting.rename(folder / JOURNAL)  # locked by then: no reader finds it without a writer
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
            for name in (JOURNAL, f".{JOURNAL}") if path == folder else ():
                (path / name).unlink(missing_ok=True)
            path.rmdir()


def _open_locked(path: Path) -> Any:
    """An existing journal's file, locked for its new writer."""
    try:
        file = open(path, "r+b", 0)  # noqa: SIM115 - closed by Journal.close
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
    with path.open("rb") as file:
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


def encode_line(entry: dict[str, Any]) -> bytes:
    """One line of the journal, without credentials."""
    return json.dumps(redact_entry(entry), separators=(",", ":")).encode() + b"\n"


class JournalReader:
    """Reads a journal from where the last iteration stopped, while the writer may append to it.

    An incomplete line is left for the next iteration, and a line that is not a JSON object is skipped.
    ``offset`` is the first byte not yet read; ``lines`` counts the lines that were read, ``unreadable`` those
    of them that were skipped.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = self.lines = self.unreadable = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
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


def now() -> str:
    """The time, UTC, ISO 8601 to the millisecond."""
    return iso(now_ms())


def now_ms() -> int:
    """The time in ms since 1970."""
    return time.time_ns() // 1_000_000


def iso(ms: float) -> str:
    """A time in ms since 1970 as ISO 8601, UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def new_run_id() -> str:
    """Twelve random hex digits; users may abbreviate them."""
    return secrets.token_hex(6)
