"""Fold: the Record of a run's folder: of its journal, line by line, or as ``record.json`` has it."""

import contextlib
import fcntl
from pathlib import Path

from dpexp.config.errors import describe
from dpexp.config.words import plural
from dpexp.record.figures import summarize
from dpexp.record.files import JournalError, write_atomically
from dpexp.record.journal import JOURNAL, RECORD, JournalReader, is_open, iso
from dpexp.record.record import NOT_OF_DPEXP, Record

WITHOUT_END = {
    "type": "LostContact",
    "message": "the process that recorded the run was killed, or its host is gone: its journal has no end",
    "traceback": "",
}
"""The error of a run whose writer has died, of the kind that a writer reports of another rank."""


def load_record(path: Path) -> Record:
    """The Record of a run's folder, or of a Record's file.

    In a folder that is ``record.json``, or the fold of the journal if that file is missing, unreadable or
    older than the journal. Raises JournalError for what dpexp did not write, or a newer dpexp did.
    """
    if path.is_file():
        try:
            return Record.from_json(path.read_bytes())
        except (OSError, *NOT_OF_DPEXP) as error:
            raise JournalError(f"{path}: not a Record: {describe(error)}") from error
    journal, written = path / JOURNAL, path / RECORD
    if written.is_file() and not journal.exists():
        return load_record(written)
    with contextlib.suppress(JournalError):
        if written.is_file() and journal.stat().st_mtime_ns <= written.stat().st_mtime_ns:
            return load_record(written)
    return fold(journal)


def fold(journal: Path) -> Record:
    """The Record of the complete lines of a journal. Raises JournalError for a file that is no journal.

    A run whose journal holds no end and has no writer was killed, and ended with the last line: its error is
    ``WITHOUT_END``. Lines that cannot be read are skipped, and counted in ``damage``.
    """
    record, reader, last_at = Record(), JournalReader(journal), 0
    try:
        alive = is_open(journal)
        for entry in reader:
            try:
                record.apply(entry)
                last_at = entry.get("at", last_at)
            except NOT_OF_DPEXP:
                reader.unreadable += 1
    except FileNotFoundError as error:
        raise JournalError(f"no journal at {journal}: {error.strerror}") from error
    except OSError as error:
        raise JournalError(f"{journal} cannot be read: {error.strerror}") from error
    if not record.run_id and not alive:
        raise JournalError(f"{journal}: no line that can be read names a run")
    if reader.unreadable:
        record.damage = [f"{plural(reader.unreadable, 'line')} of {reader.lines} cannot be read"]
    try:
        if not alive and record.status == "running":
            record.status = "killed"
            record.ended = iso(last_at)
            record.error = record.error or dict(WITHOUT_END)
        summarize(record)
    except NOT_OF_DPEXP as error:
        raise JournalError(f"{journal} holds what dpexp does not write: {describe(error)}") from error
    return record


def finish(journal: Path) -> Record:
    """Fold the journal, write the Record beside it, and return it; while it has a writer nothing is written.

    If it cannot be written, for example on a full disk, the Record's ``damage`` holds the error.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # a writer is alive, or `fold` raises it, too
            file = held.enter_context(journal.open("rb"))
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # no writer begins again meanwhile
        record = fold(journal)
        try:
            if record.status != "running":
                write_atomically(journal.with_name(RECORD), record.to_json().encode())
        except OSError as error:
            record.damage.append(f"{RECORD} could not be written: {error.strerror}")
    return record
