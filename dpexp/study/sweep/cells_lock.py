"""Cells lock: held while cells of a sweep run on this machine, by the sweep and by the process of each cell.

A sweep that is killed leaves the process of its cell, which ends with it, but not at once, and not
everywhere. It keeps the lock until then: the sweep that resumes waits for it.
"""

import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpexp.record.journal.durable import private_opener

CELLS_LOCK = ".cells.lock"


@contextmanager
def cells_lock(sweep: Path) -> Iterator[int]:
    """Hold the lock of a sweep's folder; yields the open file, which the process of a cell inherits."""
    with open(sweep / CELLS_LOCK, "wb", opener=private_opener) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("a run of this sweep is still at work: waiting for its end", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield file.fileno()
        finally:
            (sweep / CELLS_LOCK).unlink(missing_ok=True)
