"""The catalog: which runs there are, and which of them a word names.

A run that is over has a ``head.json``, so that ten thousand runs are listed without reading ten thousand
journals. Words from the command line are only ever compared with the names that are there; none becomes
part of a path.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
from pathlib import Path

from dpexp.record.fold import fold
from dpexp.record.journal import JOURNAL
from dpexp.record.record import JournalError
from dpexp.record.summary import SUMMARY, RunSummary

UNREADABLE = "unreadable"
LAST = "last"


class UnknownRunError(LookupError):
    """A word that names no run, or several: the message says which there are."""


def folders(runs: Path) -> list[Path]:
    """The folders of all runs, by run id; none where nothing has run yet."""
    try:
        with os.scandir(runs) as found:
            return sorted(Path(e.path) for e in found if not e.name.startswith(".") and e.is_dir())
    except FileNotFoundError:
        return []


def read_summary(folder: Path) -> RunSummary:
    """The head of one run: from its file, or folded from the journal of a run that is not over.

    A folder without a journal that can be read has the status ``unreadable``.
    """
    try:
        return RunSummary(**{**json.loads((folder / SUMMARY).read_bytes()), "run_id": folder.name})
    except (OSError, ValueError, TypeError):  # not over yet, or written by another dpexp: the journal knows
        try:
            return dataclasses.replace(RunSummary.of(fold(folder / JOURNAL)), run_id=folder.name)
        except JournalError:
            return RunSummary(folder.name, "", "", "", "", [], None, None, UNREADABLE, "", None)


def summaries(runs: Path) -> list[RunSummary]:
    """The heads of all runs, the newest first."""
    return sorted(map(read_summary, folders(runs)), key=lambda h: (h.started, h.run_id), reverse=True)


def find(runs: Path, word: str) -> Path:
    """The folder of the run that a word names: its id, a unique prefix of it, its name, or ``last``.

    Of several runs of one name it is the newest. Raises UnknownRunError.
    """
    there = folders(runs)
    if not there:
        raise UnknownRunError(f"there is no run in {runs} yet")
    by_id = {folder.name: folder for folder in there}
    if word in by_id:
        return by_id[word]
    beginning = [name for name in by_id if word and name.startswith(word)]
    if len(beginning) == 1:
        return by_id[beginning[0]]
    known = summaries(runs)
    for candidate in known:
        if word == LAST or (candidate.name == word and candidate.status != UNREADABLE):
            return by_id[candidate.run_id]
    if beginning:
        some = ", ".join(beginning[:5]) + (", …" if len(beginning) > 5 else "")
        raise UnknownRunError(f"'{word}' begins {len(beginning)} run ids ({some}): give more of it")
    close = difflib.get_close_matches(word, [*by_id, *(h.name for h in known)], n=1)
    mean = f": did you mean '{close[0]}'?" if close else ""
    raise UnknownRunError(
        f"no run '{word}' among the {len(there)} in {runs}, which `runs.py list` shows{mean}"
    )
