"""Check: a run's journal and Record against one another and in themselves, and the repair of what derives.

``dpexp.tracking.delivery.check`` compares them with what the MLflow store holds.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpexp.record import json_text
from dpexp.record.consistency.contradictions import contradictions
from dpexp.record.journal.fold import finish, fold
from dpexp.record.journal.journal import JOURNAL, RECORD, is_open
from dpexp.record.journal.leftovers import remove_leftovers
from dpexp.record.journal.seal import checksum, unseal
from dpexp.record.record import JournalError, Record

WRITE_AGAIN = "write it again from the journal"
_BY_VERSION = ("summary", "damage")
"""Keys of a Record that another version of dpexp may have computed otherwise; a summary may not be wrong."""


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


def record_problems(folder: Path) -> list[Problem]:
    """What is wrong with the files of a run that has ended; empty for a running one.

    What killed processes left in its folder is removed.
    """
    journal = folder / JOURNAL
    try:
        if is_open(journal):
            return []
        remove_leftovers(folder)
        record = fold(journal)
    except OSError as error:
        return [Problem(folder.name, "journal", f"{JOURNAL}: {error.strerror}")]
    except JournalError as error:
        return [Problem(folder.name, "journal", str(error))]
    found = [Problem(folder.name, "journal", text) for text in record.damage]
    if wrong := _derived(folder / RECORD, record, checksum(journal)):
        found.append(Problem(folder.name, "record", f"{RECORD}: {wrong}", WRITE_AGAIN))
    if not record.damage:  # what is lost contradicts what is left
        found += [Problem(folder.name, "contradiction", text) for text in contradictions(record)]
    return found


def _derived(path: Path, record: Record, made_from: dict[str, Any]) -> str:
    """What is wrong with the Record's file; empty for one that the journal gave, with this Record."""
    try:
        data, source = unseal(path.read_bytes())
    except FileNotFoundError:
        return "missing: the run died, and was not closed"
    except (OSError, ValueError) as error:
        return str(error)
    if source != made_from:
        return "the journal has changed since it was made"
    expected: dict[str, Any] = json_text.loads(record.to_json().encode())
    differing = [key for key, value in expected.items() if data.get(key, value) != value]
    if differing := [key for key in differing if key not in _BY_VERSION]:
        return f"{', '.join(differing)} differ from the journal"
    summarized = replace(record, summary=data.get("summary", record.summary))
    wrong = [] if record.damage else contradictions(summarized)
    return "; ".join(text for text in wrong if text.startswith("summary."))


def repair_record(folder: Path, found: list[Problem]) -> None:
    """Write the Record again if it is wrong. Raises JournalError."""
    if any(problem.repair == WRITE_AGAIN for problem in found):
        finish(folder / JOURNAL)
