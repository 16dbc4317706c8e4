"""Check: a run's journal and Record against one another and in themselves, and the repair of what derives.

``dpexp.tracking.delivery.check`` compares them with what the MLflow store holds.
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpexp.config.errors import describe
from dpexp.config.printable import printable_line
from dpexp.config.process import command
from dpexp.record import json_text
from dpexp.record.consistency.contradictions import contradictions
from dpexp.record.journal.durable import read_file
from dpexp.record.journal.fold import WITHOUT_END, finish, fold
from dpexp.record.journal.journal import JOURNAL, RECORD, is_open
from dpexp.record.journal.leftovers import remove_leftovers
from dpexp.record.journal.seal import checksum, unseal
from dpexp.record.profiler_trace import PROFILER_TRACE, wrong_trace
from dpexp.record.record import JournalError, Record
from dpexp.record.runs import clean_files
from dpexp.record.runs.clean_files import CleanFiles

WRITE_AGAIN = "write it again from the journal"

_BY_VERSION = ("summary", "damage")
"""Keys of a Record that another version of dpexp may have computed otherwise; a summary may not be wrong."""
_MOST_BYTES = 1_000_000
"""The most that is checked at a run's end, of all its files: for about 0.2 s."""


@dataclass(frozen=True)
class Problem:
    """What is wrong with a run.

    ``kind`` is journal, record, contradiction, ledger, missing, values, facts or system.
    ``repair`` says what ``runs.py check --repair`` does about it; it is empty where nothing can.
    """

    run: str
    kind: str
    what: str
    repair: str = ""


def check_end(folder: Path, record: Record) -> None:
    """Check the files of a run that has just ended, read back from the disk; a sentence says what is wrong.

    That nothing is spares the next ``check`` this work (see ``clean_files``). It is left to ``check`` where
    long files would delay the end, and of a Record whose ``damage`` the user sees anyway.
    """
    journal, found = folder / JOURNAL, []
    try:
        sizes = (path.stat().st_size for name in clean_files.FILES if (path := folder / name).is_file())
        if record.damage or sum(sizes) > _MOST_BYTES or is_open(journal):
            return
        before = clean_files.digest(folder)
        read_back = fold(journal)
        if not (found := [problem.what for problem in _own_problems(folder, read_back)]):
            clean_files.note(folder, before, read_back)
    except Exception as error:  # whatever it is: the run has ended, and is recorded
        found = [f"its files could not be checked: {describe(error)}"]
    if found:
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        text = f"warning: run {folder.name}: {found[0]}{more}; {command('runs')} check {folder.name} shows it"
        logging.getLogger(__name__).warning("%s", printable_line(text))


def record_problems(folder: Path, clean: CleanFiles | None = None) -> list[Problem]:
    """What is wrong with the files of a run that has ended; empty for a running one.

    ``clean`` spares files in which nothing was found. What killed processes left in the folder is removed.
    """
    try:
        if is_open(folder / JOURNAL):
            return []
        remove_leftovers(folder)
        record = clean.get(folder) if clean else None
        if record is None:
            record = fold(folder / JOURNAL)
            if found := _own_problems(folder, record):
                return found
            if clean:
                clean.keep(folder, record)
    except OSError as error:
        return [Problem(folder.name, "journal", f"{JOURNAL}: {error.strerror}")]
    except JournalError as error:
        return [Problem(folder.name, "journal", str(error))]
    return []


def _own_problems(folder: Path, record: Record) -> list[Problem]:
    """What is wrong with the run's own files, ``clean_files.FILES``; the Record is its journal's."""
    found = [Problem(folder.name, "journal", text) for text in record.damage]
    contradicting = [] if record.damage else contradictions(record)  # what is lost contradicts what is left
    if wrong := _derived(folder / RECORD, record, checksum(folder / JOURNAL), contradicting):
        found.append(Problem(folder.name, "record", f"{RECORD}: {wrong}", WRITE_AGAIN))
    found += [Problem(folder.name, "contradiction", text) for text in contradicting]
    if wrong := wrong_trace(folder, record):
        found.append(Problem(folder.name, "record", f"{PROFILER_TRACE}: {wrong}"))
    return found


def _derived(path: Path, record: Record, made_from: dict[str, Any], contradicting: list[str]) -> str:
    """What is wrong with the Record's file; empty for one that the journal gave, with this Record."""
    try:
        data, source = unseal(read_file(path))
    except FileNotFoundError:
        return "missing: the run died, and was not closed"
    except OSError as error:
        return error.strerror or str(error)
    except ValueError as error:
        return str(error)
    if source != made_from:
        return "the journal has changed since it was made"
    differing = _differing(data, record)
    if record.error == WITHOUT_END and data.get("error") is None:  # as version 0.1 wrote it
        differing = [key for key in differing if key != "error"]
    if wrong := [key for key in differing if key not in _BY_VERSION]:
        return f"{', '.join(wrong)} differ from the journal"
    if "summary" in differing and not record.damage:
        contradicting = contradictions(replace(record, summary=data["summary"]))
    return "; ".join(text for text in contradicting if text.startswith("summary."))


def _differing(data: dict[str, Any], record: Record) -> list[str]:
    """The keys of a Record's file whose values are not this Record's.

    Only values that are not equal as they are become JSON, which spells some otherwise, as inf.
    """
    unequal = {key: value for key, value in record.to_dict().items() if data.get(key, value) != value}
    if not unequal:
        return []
    written: dict[str, Any] = json_text.loads(replace(Record(), **unequal).to_json().encode())
    return [key for key in unequal if data[key] != written[key]]


def repair_record(folder: Path, found: list[Problem]) -> None:
    """Write the Records again that are wrong. Raises JournalError."""
    if any(problem.repair == WRITE_AGAIN for problem in found):
        finish(folder / JOURNAL)
