"""Temporary folder: in the temporary directory, and removed by the next process where its own was killed.

Its process holds a lock on it. Where the file system has no locks, the process that its name names counts.
"""

import fcntl
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_NAME = re.compile(r"\.?dpexp-[a-z]+-(?:([0-9]+)_([0-9a-f]{8})_)?\w+\.held")
"""Of folders that are locked as long as they are used; earlier ones have no process and machine."""


@contextmanager
def temporary_folder(what: str, within: Path | None = None) -> Iterator[Path]:
    """A new folder ``dpexp-WHAT-….held`` for this user, until the end of the block.

    One ``within`` a folder of DPEXP_HOME is hidden from those who list it.
    """
    remove_dead_folders(within)
    prefix = f"{'.' if within else ''}dpexp-{what}-{os.getpid()}_{_machine()}_"
    while True:
        # One that cannot be removed, as without a file descriptor, is left to the next process.
        with tempfile.TemporaryDirectory(".held", prefix, within, ignore_cleanup_errors=True) as name:
            held = _lock(name, is_new=True)
            if held is None:  # another process removes it
                continue
            try:
                yield Path(name)
            finally:
                os.close(held)
            return


@contextmanager
def temporary_files(what: str) -> Iterator[None]:
    """Whatever this process makes in the temporary directory lies in a ``temporary_folder`` meanwhile.

    A library removes its files itself, but not where its process is killed, or has no file descriptor left.
    """
    with temporary_folder(what) as folder:
        before, tempfile.tempdir = tempfile.tempdir, str(folder)
        try:
            yield
        finally:
            tempfile.tempdir = before


def remove_dead_folders(within: Path | None = None) -> None:
    """Remove those of dead processes of this user: in the temporary directory, or ``within`` another."""
    with suppress(OSError), os.scandir(within or tempfile.gettempdir()) as found:
        for entry in found:
            if _NAME.fullmatch(entry.name):
                with suppress(OSError):
                    _remove_dead(entry.path)


def _remove_dead(folder: str) -> None:
    if (held := _lock(folder)) is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _lock(folder: str, *, is_new: bool = False) -> int | None:
    """Lock a folder of this user; None where it is gone, in use or another user's. Raises OSError."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    if os.fstat(descriptor).st_uid == os.getuid() and os.path.exists(folder):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            pass
        except OSError:  # a file system without locks
            if is_new or _is_dead(folder):
                return descriptor
    os.close(descriptor)
    return None


def _is_dead(folder: str) -> bool:
    """Whether a folder that cannot be locked was made on this machine, by a process that has ended."""
    found = _NAME.fullmatch(os.path.basename(folder))
    if found is None or found[2] != _machine():
        return False
    return not os.path.exists(f"/proc/{found[1]}")


def _machine() -> str:
    """This machine, or container, whose processes have ids of their own."""
    return f"{zlib.crc32(os.uname().nodename.encode()):08x}"
