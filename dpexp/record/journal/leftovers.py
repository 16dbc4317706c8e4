"""Leftovers: what a process that was killed left in a run's folder, and that no process uses any more."""

import contextlib
import os
from pathlib import Path

from dpexp.record.journal.durable import is_temporary, remove_temporary
from dpexp.record.journal.journal import JOURNAL, RESERVE, is_open


def remove_seen(folder: Path) -> None:
    """Call ``remove_leftovers`` where there is one beside the journal: one look of whoever reads the run."""
    if has_leftovers(folder):
        remove_leftovers(folder)


def has_leftovers(folder: Path) -> bool:
    """Whether a folder has a temporary or reserved file, which may be in use."""
    try:
        return any(name == RESERVE or is_temporary(name) for name in os.listdir(folder))
    except OSError:
        return False


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of writers that have died, and the reserved file of a run that has ended.

    What cannot be removed, as in a folder of another user, stays.
    """
    for path, _, names in os.walk(folder):
        remove_temporary(Path(path), names)
    with contextlib.suppress(OSError):
        if not is_open(folder / JOURNAL):
            (folder / RESERVE).unlink(missing_ok=True)
