"""Permission: whether a run may be delivered to a store. Every delivery asks here, whoever makes it.

::

    run.py                 yes    it is tracked            run.py --no-track      no
    sweep.py               yes    and so are its runs      sweep.py --no-track    no, nor its runs
    runs.py sync RUN       yes    whoever names a run delivers it; also what is repaired there later
    run.py --resume RUN    what this part says, for the whole run
"""

from pathlib import Path

from dpexp.record.journal.fold import load
from dpexp.record.journal.journal import JOURNAL
from dpexp.record.record import JournalError, Record
from dpexp.tracking.delivery import ledger

_TRACK = "track"


def may_deliver(folder: Path, record: Record, store: str) -> bool:
    """Whether this store may get a run that no one has named: it is tracked, or was named as it is now."""
    entry = ledger.read_ledger(folder).get(store)
    if entry is not None and entry.journal_bytes == (folder / JOURNAL).stat().st_size:
        return True
    return is_tracked(folder, record)


def is_tracked(folder: Path, record: Record) -> bool:
    """What the config of its sweep says, else its own; no where the journal has lost its config."""
    own = bool(record.config.get(_TRACK, bool(record.config)))
    parent = ledger.parent_folder(folder, record)
    if parent is None or not (parent / JOURNAL).exists():
        return own
    try:
        return bool(load(parent).config.get(_TRACK, own))
    except JournalError:
        return own
