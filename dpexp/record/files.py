"""Files of DPEXP_HOME: private to their owner, and written completely or not at all."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

PRIVATE_UMASK = 0o077
PROFILE_TRACE, PROFILE_TABLE = "profile.json.gz", "profile.txt"
"""The files of ``--profile`` in a run's folder: every operator and kernel, and a table of the costliest."""


class JournalError(RuntimeError):
    """A journal or Record that cannot be read or written: what is wrong, where, and what to do."""


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """What this process makes meanwhile is for its owner alone, also what a library makes."""
    before = os.umask(PRIVATE_UMASK)
    try:
        yield
    finally:
        os.umask(before)


def make_folder(path: Path, *, exist_ok: bool = False) -> None:
    """Make a folder of DPEXP_HOME, and those above it that are missing. Raises OSError."""
    if not path.parent.exists():
        make_folder(path.parent, exist_ok=True)
    path.mkdir(0o700, exist_ok=exist_ok)


def check_home(home: Path) -> None:
    """Raise JournalError for a DPEXP_HOME that is not a directory and cannot be made: it needs its parent."""
    for path in (home, home / "runs"):
        if os.path.lexists(path) and not path.is_dir():
            raise JournalError(f"{path} is not a directory: rename what is there, or correct DPEXP_HOME")
    if not home.parent.is_dir():
        raise JournalError(
            f"DPEXP_HOME {home}: {home.parent} is not a directory: make it, or correct DPEXP_HOME"
        )


def check_writable(runs: Path) -> None:
    """Raise JournalError unless the folder ``runs`` of DPEXP_HOME can be written to. Leaves nothing there."""
    check_home(runs.parent)
    existing = next(path for path in (runs, *runs.parents) if path.is_dir())
    try:
        tempfile.TemporaryFile(dir=existing).close()  # without a name, where the file system can
    except OSError as error:
        raise unwritable(runs, error) from error


def unwritable(path: Path, error: OSError) -> JournalError:
    """The error of a folder in which no journal can be written."""
    return JournalError(
        f"cannot write a journal at {path}: {error.strerror}; DPEXP_HOME is the folder of the runs"
    )


def write_atomically(path: Path, content: bytes) -> None:
    """Write to a temporary file, sync, rename: a reader sees the old content or the new, never a part.

    Raises OSError, and leaves no temporary file behind, unless the process is killed.
    """
    descriptor, temporary = tempfile.mkstemp(".tmp", f".{path.name}.", path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable (a new or renamed file is lost without it)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
