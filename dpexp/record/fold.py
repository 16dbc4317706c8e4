"""Folding: a journal, cut off or not, into the Record of what it holds."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from pathlib import Path

from dpexp.record.durable import write_atomically
from dpexp.record.journal import JOURNAL, RECORD, Tail, is_open
from dpexp.record.record import JournalError, Record
from dpexp.record.summary import SUMMARY, RunSummary


def fold(journal: Path) -> Record:
    """The Record of a journal. Raises JournalError where there is none, or a newer one.

    A journal that does not say how the run ended is that of a killed run, unless its writer is alive: the
    run then ended with the last line. Damaged lines are left out and named in ``damage``.
    """
    record, tail, last_at = Record(), Tail(journal), 0
    try:
        alive = is_open(journal)
        for entry in tail:
            last_at = entry.get("at", last_at)
            try:
                record.apply(entry)
            except (ValueError, TypeError, AttributeError) as error:
                tail.damage.append(f"line {tail.lines}: {error}")
    except FileNotFoundError:
        raise JournalError(f"no journal at {journal}") from None
    except IsADirectoryError:
        raise JournalError(f"{journal} is a directory, not a journal") from None
    except OSError as error:
        raise JournalError(f"{journal}: {error.strerror}") from error
    if tail.lines == len(tail.damage) > 0 or (tail.lines == 0 and tail.cut()):
        raise JournalError(f"{journal}: not one line is whole: this is no journal of dpexp")
    if not alive:
        cut = tail.cut()
        tail.damage += [cut] if cut else []
        if record.status == "running":
            record.status, record.ended = "killed", iso(last_at)
    record.damage = tail.damage
    try:
        record.summarize()
    except (TypeError, ValueError, KeyError, AttributeError) as error:  # rows that dpexp did not write
        record.damage.append(f"no summary: {type(error).__name__}: {error}")
    return record


def finish(journal: Path) -> Record:
    """Fold the journal, write ``record.json`` and ``head.json`` beside it, and return the Record.

    Where the disk has no room for them the journal stays the only file: the Record's ``damage`` says so.
    """
    record = fold(journal)
    try:
        write_atomically(journal.with_name(RECORD), record.to_json().encode())
        write_atomically(journal.with_name(SUMMARY), RunSummary.of(record).to_json().encode())
    except OSError as error:
        record.damage.append(f"{RECORD} could not be written: {error.strerror}")
    return record


def load(folder: Path) -> Record:
    """The Record of a run's folder: ``record.json`` where the run is over, else the journal's fold."""
    with contextlib.suppress(FileNotFoundError, ValueError):  # not over, or damaged: the journal knows
        data = json.loads((folder / RECORD).read_bytes())
        if isinstance(data, dict):
            return Record.from_dict(data)
    return fold(folder / JOURNAL)


def iso(at_ms: int) -> str:
    """Milliseconds since 1970 as ISO 8601, UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
