"""Fold: a journal, complete or not, becomes the Record of what it holds."""

from operator import itemgetter
from pathlib import Path

from dpexp.config.ranges import be, plural, ranges
from dpexp.record import clock
from dpexp.record.figures.summary import summarize
from dpexp.record.journal.durable import write_atomically
from dpexp.record.journal.journal import JOURNAL, RECORD, RUN_ID, is_open
from dpexp.record.journal.kept import keep, lost_bytes
from dpexp.record.journal.leftovers import remove_leftovers, remove_seen
from dpexp.record.journal.reader import JournalReader
from dpexp.record.journal.seal import checksum, read_derived, seal, warn_of
from dpexp.record.record import JournalError, Record
from dpexp.record.schema import wrong_types

WITHOUT_END = {
    "type": "LostContact",
    "message": "the process that recorded the run was killed, or its host is gone: its journal has no end",
    "traceback": "",
}
"""The error of a run whose writer has died, of the kind that a writer reports of another rank."""


def fold(journal: Path) -> Record:
    """The Record of a journal. Raises JournalError where there is none, or not one that this dpexp reads.

    A run whose journal holds no end and has no writer was killed, and ended with the last line: its error is
    ``WITHOUT_END``. Damaged and lost lines are described in ``damage``, also those after the last one, if a
    Record was made from them; where the first is lost, the folder names the run.
    """
    record, reader, last_at = Record(), JournalReader(journal), 0
    try:
        alive = is_open(journal)
        for entry in sorted(reader, key=itemgetter("seq")):
            last_at = entry.get("at", last_at)
            try:
                record.apply(entry)
            except ValueError as error:
                reader.damage.append(f"line {entry['seq'] + 1}: {error}")
    except FileNotFoundError as error:
        raise JournalError(f"no journal at {journal}: {error.strerror}") from error
    except OSError as error:
        raise JournalError(f"{journal} cannot be read: {error.strerror}") from error
    record.damage = reader.damage + ([] if alive else reader.incomplete_line())
    if not reader.entries and not alive:
        raise JournalError(f"{journal}: {_without_entries(reader, record)}")
    if reader.lost_first and not record.run_id and RUN_ID.fullmatch(folder := journal.absolute().parent.name):
        record.run_id = folder
    if not alive:
        record.damage += lost_bytes(journal.with_name(RECORD), record.run_id, journal.stat().st_size)
    if not alive and record.status == "running":
        record.status = "killed"
        record.ended = clock.iso(last_at)
        record.error = record.error or dict(WITHOUT_END)
    if wrong := wrong_types(record.to_dict()):
        raise JournalError(f"{journal} was not written by dpexp: {wrong[0]}")
    if missing := record.missing_steps():
        record.damage.append(f"{plural(len(missing), 'step')} {be(len(missing))} missing: {ranges(missing)}")
    summarize(record)
    return record


def _without_entries(reader: JournalReader, record: Record) -> str:
    if reader.lines:
        return "every line is damaged: this is not a journal of dpexp"
    return f"its first line is incomplete ({record.damage[0]})" if record.damage else "it is empty"


def finish(journal: Path) -> Record:
    """Fold the journal, write the Record beside it, and return it; remove what killed processes left there.

    If it cannot be written, for example on a full disk, the Record's ``damage`` holds the error.
    """
    record = fold(journal)
    remove_leftovers(journal.parent)
    try:
        made_from = checksum(journal)
        keep(journal.with_name(RECORD), record.run_id, made_from["bytes"], is_damaged=bool(record.damage))
        write_atomically(journal.with_name(RECORD), seal(record.to_json(), made_from))
    except OSError as error:
        record.damage.append(f"{RECORD} could not be written: {error.strerror}")
    return record


def load(folder: Path) -> Record:
    """The Record of a run's folder: ``record.json`` of a run that has ended, else the journal's fold."""
    remove_seen(folder)
    return _read(folder) or fold(folder / JOURNAL)


def load_closed(folder: Path) -> Record:
    """``load`` of a run that has ended; ``record.json`` is written again if it is missing or damaged."""
    return _read(folder) or finish(folder / JOURNAL)


def _read(folder: Path) -> Record | None:
    """The Record in ``record.json``; None, with a warning, where it is not what the journal gave."""
    try:
        return Record.from_dict(read_derived(folder / RECORD, folder / JOURNAL))
    except OSError:  # none, or of another user; where the journal cannot be read either, `fold` raises
        return None
    except ValueError as error:
        warn_of(folder / RECORD, str(error))
        return None
