"""Fold: a journal, complete or not, becomes the Record of what it holds."""

import json
from pathlib import Path

from dpexp.config.errors import describe
from dpexp.config.ranges import plural
from dpexp.record.figures.summary import summarize
from dpexp.record.files import write_atomically
from dpexp.record.journal.journal import JOURNAL, RECORD, is_open
from dpexp.record.journal.reader import JournalReader
from dpexp.record.record import NOT_OF_DPEXP, JournalError, Record, iso

WITHOUT_END = {
    "type": "LostContact",
    "message": "the process that recorded the run was killed, or its host is gone: its journal has no end",
    "traceback": "",
}
"""The error of a run whose writer has died, of the kind that a writer reports of another rank."""


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
    """Fold the journal, write the Record beside it, and return it.

    If it cannot be written, for example on a full disk, the Record's ``damage`` holds the error.
    """
    record = fold(journal)
    try:
        write_atomically(journal.with_name(RECORD), record.to_json().encode())
    except OSError as error:
        record.damage.append(f"{RECORD} could not be written: {error.strerror}")
    return record


def load(folder: Path) -> Record:
    """The Record of a run's folder: ``record.json`` of a run that has ended, else the journal's fold."""
    return _read(folder) or fold(folder / JOURNAL)


def load_closed(folder: Path) -> Record:
    """``load`` of a run that has ended; ``record.json`` is written again if it is missing or unreadable."""
    return _read(folder) or finish(folder / JOURNAL)


def _read(folder: Path) -> Record | None:
    """The Record in ``record.json``; None without one that can be read and is of the whole journal."""
    written, journal = folder / RECORD, folder / JOURNAL
    try:
        if journal.exists() and journal.stat().st_mtime_ns > written.stat().st_mtime_ns:
            return None
        return Record.from_dict(json.loads(written.read_bytes()))
    except (OSError, *NOT_OF_DPEXP):
        return None
