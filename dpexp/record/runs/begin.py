"""Begin: the journal of a run that starts, or starts again, with its description as the first lines."""

import os
from pathlib import Path

from dpexp.record.journal.journal import Journal
from dpexp.record.record import JournalError, Record, Row, new_run_id

PARENT = "DPEXP_PARENT"
"""The environment variable with the run id of the sweep that a run belongs to."""


def begin(home: Path, run_id: str, facts: Row, *, restarted: bool) -> Journal:
    """The journal with these facts: a new one, under a new id where it has none, or that of restarted ranks.

    Raises JournalError where it cannot be written: then a new run leaves nothing.
    """
    runs = home / "runs"
    continues = restarted and (runs / run_id).exists()
    if continues:
        journal = Journal.reopen(runs / run_id)
        kept = ("schema", "run_id", "started", "parent", "steps")
        journal.set({key: value for key, value in (Record().to_dict() | facts).items() if key not in kept})
    else:
        journal = Journal(runs, run_id or new_run_id())
        journal.set(facts, parent=os.environ.get(PARENT, ""))
    try:
        journal.flush()
    except JournalError:
        if not continues:
            journal.abandon()
        raise
    return journal
