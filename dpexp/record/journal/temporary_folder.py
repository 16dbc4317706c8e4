"""Temporary folder: in the temporary directory, and removed by the next process where its own was killed."""

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_NAME = re.compile(r"dpexp-[a-z]+-\w+\.held")
"""Of folders that are locked as long as they are used; earlier versions made others."""


@contextmanager
def temporary_folder(what: str) -> Iterator[Path]:
    """A new folder ``dpexp-WHAT-….held`` for this user, until the end of the block."""
    remove_dead_folders()
    while True:
        # One that cannot be removed, as without a file descriptor, is left to the next process.
        with tempfile.TemporaryDirectory(".held", f"dpexp-{what}-", ignore_cleanup_errors=True) as name:
            held = _lock(name)
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


def remove_dead_folders() -> None:
    """Remove those of this user whose processes have died."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as found:
        for entry in found:
            if _NAME.fullmatch(entry.name):
                with suppress(OSError):
                    _remove_dead(entry.path)


def _remove_dead(folder: str) -> None:
    if (held := _lock(folder)) is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _lock(folder: str) -> int | None:
    """Lock a folder of this user; None where it is gone, in use or another user's. Raises OSError."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        if os.fstat(descriptor).st_uid == os.getuid() and os.path.exists(folder):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
    except BlockingIOError:
        pass
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None
