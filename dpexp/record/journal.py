"""The journal: the append-only file that holds a run's facts, its one writer, and the reader of its entries.

Each line is a JSON object of the time in ms since 1970 and one operation on the Record::

    {"at":1767225600000,"set":{"status":"running"}}                  assign values to keys
    {"at":1767225600000,"extend":{"steps.time_ms":[0.31,0.29]}}      append to lists

A dotted key is a key of a dict. A journal that ends at any byte still holds every complete line before it.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import re
import secrets
import shutil
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpexp.config.words import be, plural
from dpexp.record.files import JournalError, check_writable, make_folder, sync_folder, unwritable
from dpexp.record.redact import redact_values

SCHEMA = 1
JOURNAL = "journal.jsonl"
RECORD = "record.json"
SWEEP_STRATEGY = "sweep"
PLAN_STRATEGY = "plan"
"""The strategy of a sweep's own Record."""
WATCH_STRATEGY = "watch"
"""The strategy of a watched loop; its config has the ``layout``, where that is plain."""
COMPARISON = "report"
"""The folder in a sweep's folder with the comparison of its runs."""
FLUSH_SECONDS = 0.5
"""Flush interval: how long what is buffered waits in memory, where a SIGKILL loses it."""
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Journal(contextlib.AbstractContextManager["Journal"]):
    """The only writer of one run's ``journal.jsonl``; it holds the file's lock until it is closed.

    ``set`` and ``extend`` buffer; ``flush`` writes a line for each and syncs them to the disk. Who has raw
    samples asks ``is_due`` for when. Raises JournalError if the run already has a journal, if its folder
    cannot be made, and if the disk is full.
    """

    def __init__(self, runs: Path, run_id: str) -> None:
        if not RUN_ID.fullmatch(run_id):
            raise JournalError(f"run id {run_id!r}: letters, digits, - and _ only, 64 at most")
        check_writable(runs)
        folder = runs / run_id
        try:
            make_folder(folder)
            self._open(folder, _create(folder))
        except FileExistsError:
            raise JournalError(f"{folder}: this run has a journal already; a run id is used once") from None
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise unwritable(folder, error) from error
        self.set(schema=SCHEMA, run_id=run_id, started=now())

    @classmethod
    def reopen(cls, folder: Path) -> Journal:
        """Append to the journal of a sweep that is resumed; an incomplete last line is dropped.

        Raises JournalError where there is no journal or its writer is alive.
        """
        journal = cls.__new__(cls)
        journal._open(folder, _open_locked(folder / JOURNAL))
        reader = JournalReader(journal.path)
        for _ in reader:
            pass
        journal._lines, journal._size = reader.lines, reader.offset
        journal._restore()
        (folder / RECORD).unlink(missing_ok=True)
        return journal

    def _open(self, folder: Path, file: Any) -> None:
        self.folder, self.path, self._file = folder, folder / JOURNAL, file
        _close_in_forked_children()
        _open_files.add(file)
        self._lines = self._size = 0
        self._due_at = 0.0
        self._set: dict[str, Any] = {}
        self._extended: list[dict[str, list[Any]]] = []

    def set(self, values: Mapping[str, Any] | None = None, **named: Any) -> None:
        """Assign values to keys of the Record; ``{"steps.loss": …}`` for a dotted key."""
        self._set |= dict(values or {}) | named

    def extend(self, values: Mapping[str, Iterable[Any]]) -> None:
        """Append to lists of the Record."""
        lists = {key: list(items) for key, items in values.items()}
        self._extended.append(lists)  # all at once: Ctrl-C cannot come between two lists

    @property
    def is_due(self) -> bool:
        """Whether the flush interval is over."""
        return time.perf_counter() >= self._due_at

    def flush(self, *, burst: int | None = None) -> None:
        """Write what is buffered and sync it to the disk. Raises JournalError: then it stays buffered.

        With ``burst`` the flush interval begins again, and after a pause so many flushes are due at once.
        """
        if burst is not None:
            self._due_at = max(self._due_at, time.perf_counter() - burst * FLUSH_SECONDS) + FLUSH_SECONDS
        lists: dict[str, list[Any]] = {}
        for extended in self._extended:
            for key, items in extended.items():
                lists.setdefault(key, []).extend(items)
        if operations := [each for each in (("extend", lists), ("set", self._set)) if each[1]]:
            self._append(operations)
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
        """Close a new journal of which no line could be written, and remove its folder."""
        self._file.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _append(self, operations: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Write a line for each operation; on any exception restore the file and raise it."""
        lines = [encode_line({"at": now_ms(), name: values}) for name, values in operations]
        content, written = b"".join(lines), 0
        try:
            while written < len(content):
                written += os.write(self._file.fileno(), content[written:])
            os.fsync(self._file.fileno())
        except BaseException as error:  # Ctrl-C too: the buffer will be written again
            self._restore()
            if not isinstance(error, OSError):
                raise
            safe = f"{plural(self._lines, 'line')} {be(self._lines)} safe"
            raise JournalError(f"{self.path}: {error.strerror or error}; {safe}") from error
        self._lines += len(lines)
        self._size += len(content)

    def _restore(self) -> None:
        self._file.truncate(self._size)
        self._file.seek(self._size)


class NullJournal(Journal):
    """The journal of a rank that does not record: it writes nothing."""

    is_due = False

    def __init__(self) -> None:
        self.folder = self.path = Path()

    def _ignore(self, *values: Any, **named: Any) -> None:
        """Write nothing."""

    set = extend = flush = close = _ignore


def _create(folder: Path) -> Any:
    """A new journal's file, with a durable name and locked before it has it: no reader finds it unlocked."""
    starting = folder / f".{JOURNAL}"
    file = open(os.open(starting, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "r+b", 0)  # noqa: SIM115
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    starting.rename(folder / JOURNAL)
    sync_folder(folder)
    sync_folder(folder.parent)
    return file


def _open_locked(path: Path) -> Any:
    """An existing journal's file, locked for its new writer. Raises JournalError where one is alive."""
    try:
        if is_open(path):
            raise JournalError(f"{path}: another process is writing it")
        file = open(path, "r+b", 0)  # noqa: SIM115 - closed by Journal.close
        fcntl.flock(file, fcntl.LOCK_EX)  # a reader holds it for a moment
    except OSError as error:
        raise JournalError(f"cannot append to {path}: {error.strerror}") from error
    return file


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


def encode_line(entry: dict[str, Any]) -> bytes:
    """One line of the journal, without credentials; samples and spans have none."""
    entry = {key: redact_values(value) if key == "set" else value for key, value in entry.items()}
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


class JournalReader:
    """Reads a journal from where the last iteration stopped, while the writer may append to it.

    An incomplete line is left for the next iteration, and a line that holds no entry is skipped. ``offset``
    is the first byte not yet read; ``lines`` counts the lines that were read, ``unreadable`` those of them
    that were skipped.
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
                if isinstance(entry, dict) and _is_known(entry):
                    yield entry
                else:
                    self.unreadable += 1


def _is_known(entry: dict[str, Any]) -> bool:
    """Whether a line has what this version writes, and nothing of another one."""
    values = (entry.get(name, {}) for name in ("set", "extend"))
    return entry.keys() <= {"at", "set", "extend"} and all(isinstance(value, dict) for value in values)


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
