"""Check: a run's journal and Record against one another, and the repair of what derives.

``dpexp.tracking.delivery.check`` compares them with what the MLflow store holds.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpexp.record.journal.fold import finish, fold
from dpexp.record.journal.journal import JOURNAL, RECORD, is_open
from dpexp.record.journal.leftovers import remove_leftovers
from dpexp.record.journal.seal import checksum, unseal
from dpexp.record.record import JournalError

WRITE_AGAIN = "write it again from the journal"


@dataclass(frozen=True)
class Problem:
    """What is wrong with a run.

    ``kind`` is journal, record, ledger, missing, values, facts or system.
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
    if wrong := _derived(folder / RECORD, checksum(journal)):
        found.append(Problem(folder.name, "record", f"{RECORD}: {wrong}", WRITE_AGAIN))
    return found


def _derived(path: Path, made_from: dict[str, Any]) -> str:
    """What is wrong with the Record's file; empty for one that the journal gave."""
    try:
        _, source = unseal(path.read_bytes())
    except FileNotFoundError:
        return "missing: the run died, and was not closed"
    except (OSError, ValueError) as error:
        return str(error)
    return "" if source == made_from else "the journal has changed since it was made"


def repair_record(folder: Path, found: list[Problem]) -> None:
    """Write the Record again if it is wrong. Raises JournalError."""
    if any(problem.repair == WRITE_AGAIN for problem in found):
        finish(folder / JOURNAL)
