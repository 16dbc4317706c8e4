"""Fold: a journal, complete or not, becomes the Record of what it holds."""

import contextlib
import json
from datetime import UTC, datetime
from pathlib import Path

from dpexp.record.durable import write_atomically
from dpexp.record.journal import JOURNAL, RECORD, JournalReader, is_open
from dpexp.record.record import JournalError, Record
from dpexp.record.summary import SUMMARY, RunSummary


def fold(journal: Path) -> Record:
    """The Record of a journal. Raises JournalError where there is none, or a newer one.

    A run whose journal holds no end and has no writer was killed, and ended with the last line. Damaged
    lines are left out and described in ``damage``.
    """
    record, reader, last_at = Record(), JournalReader(journal), 0
    try:
        alive = is_open(journal)
        for entry in reader:
            last_at = entry.get("at", last_at)
            try:
                record.apply(entry)
            except (ValueError, TypeError, AttributeError) as error:
                reader.damage.append(f"line {reader.lines}: {error}")
    except OSError as error:
        raise JournalError(f"no journal at {journal}: {error.strerror}") from error
    record.damage = reader.damage + ([] if alive else reader.incomplete_line())
    if reader.lines == len(reader.damage) and (reader.damage or reader.incomplete_line()):
        raise JournalError(f"{journal}: every line is damaged: this is not a journal of dpexp")
    if not alive and record.status == "running":
        record.status = "killed"
        record.ended = datetime.fromtimestamp(last_at / 1000, UTC).isoformat(timespec="milliseconds")
    try:
        record.summarize()
    except (TypeError, ValueError, KeyError, AttributeError) as error:  # rows that dpexp did not write
        record.damage.append(f"no summary: {type(error).__name__}: {error}")
    return record


def finish(journal: Path) -> Record:
    """Fold the journal, write the Record and its summary beside it, and return the Record.

    If they cannot be written, for example on a full disk, the Record's ``damage`` holds the error.
    """
    record = fold(journal)
    try:
        write_atomically(journal.with_name(RECORD), record.to_json().encode())
        write_atomically(journal.with_name(SUMMARY), RunSummary.of(record).to_json().encode())
    except OSError as error:
        record.damage.append(f"{RECORD} could not be written: {error.strerror}")
    return record


def load(folder: Path) -> Record:
    """The Record of a run's folder: ``record.json`` of a run that has ended, else the journal's fold."""
    with contextlib.suppress(FileNotFoundError, ValueError):  # still running, or damaged
        data = json.loads((folder / RECORD).read_bytes())
        if isinstance(data, dict):
            return Record.from_dict(data)
    return fold(folder / JOURNAL)
