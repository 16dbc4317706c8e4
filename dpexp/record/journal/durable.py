"""Files that survive a crash, written completely or not at all, and that only their owner can read.

What dpexp makes in DPEXP_HOME has the modes 0700 and 0600, whatever the umask is. With ``DPEXP_SHARED=1``,
for a group that shares a home, the umask decides.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from dpexp.record.record import JournalError

_SHARED = "DPEXP_SHARED"
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
_EARLIER = re.compile(r"\..+\.(?:json|jsonl|pt)\.([0-9]{1,10})")
"""What versions before 1.0 called a temporary file: with the id of its process, and without a lock."""
_WRITTEN_S = 60.0
"""A file of that name that has not changed for so long is not being written, also by a process elsewhere."""


def is_shared() -> bool:
    """Whether the user shares DPEXP_HOME with others."""
    return os.environ.get(_SHARED, "").lower() not in ("", "0", "false")


def private_umask() -> int:
    """The umask of a child process that writes to DPEXP_HOME; -1 to keep the present one."""
    return -1 if is_shared() else 0o077


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """What this process makes meanwhile is for its owner alone, also what a library makes."""
    before = os.umask(0o077)
    if is_shared():
        os.umask(before)
    try:
        yield
    finally:
        os.umask(before)


def make_folder(path: Path, *, exist_ok: bool = False) -> None:
    """Make a folder of DPEXP_HOME, and those above it that are missing. Raises OSError."""
    if not path.parent.exists():
        make_folder(path.parent, exist_ok=True)
    path.mkdir(0o777 if is_shared() else 0o700, exist_ok=exist_ok)


def check_home(home: Path) -> None:
    """Raise JournalError for a DPEXP_HOME that is not a directory and cannot be made: it needs its parent."""
    if _is_no_directory(home):
        raise JournalError(
            f"DPEXP_HOME {home} is not a directory: rename what is there, or correct DPEXP_HOME"
        )
    if not home.parent.is_dir():
        raise JournalError(
            f"DPEXP_HOME {home}: {home.parent} is not a directory: make it, or correct DPEXP_HOME"
        )


def check_writable(runs: Path) -> None:
    """Raise JournalError unless the folder ``runs`` of DPEXP_HOME can be written to. Leaves nothing there."""
    check_home(runs.parent)
    try:
        if _is_no_directory(runs):
            raise JournalError(f"{runs} is not a directory: rename what is there, or correct DPEXP_HOME")
        existing = next(path for path in (runs, *runs.parents) if path.is_dir())
        tempfile.TemporaryFile(dir=existing).close()  # without a name, where the file system can
    except OSError as error:
        raise JournalError(
            f"cannot write a journal at {runs}: {error.strerror}; DPEXP_HOME is the folder of the runs"
        ) from error


def _is_no_directory(path: Path) -> bool:
    """Whether something else than a directory is there. Another process may make the directory meanwhile."""
    return os.path.lexists(path) and not path.is_dir()


def share(path: Path) -> None:
    """In a shared home, let all read and write a file whom the umask lets: SQLite makes files with 0644.

    A file of another user keeps its mode.
    """
    if is_shared() and path.exists():
        umask = os.umask(0)
        os.umask(umask)
        with contextlib.suppress(PermissionError):
            path.chmod(path.stat().st_mode | 0o666 & ~umask)


class NotAFileError(OSError, ValueError):
    """Where a file should be is a pipe, a device or a link, which is not followed."""


def private_opener(path: str, flags: int) -> int:
    """The ``opener`` of ``open`` for a file of DPEXP_HOME. Raises NotAFileError, and never waits."""
    mode = 0o666 if is_shared() else 0o600
    if os.path.islink(path):
        raise NotAFileError(errno.ELOOP, "is a link, not a file", path)
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode)
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        raise NotAFileError(errno.EINVAL, "is a directory" if stat.S_ISDIR(kind) else "is not a file", path)
    return descriptor


def read_file(path: Path) -> bytes:
    """The content of a file of DPEXP_HOME. Raises OSError, and NotAFileError for what is none."""
    with open(path, "rb", opener=private_opener) as file:
        return file.read()


def write_atomically(path: Path, content: bytes, *, private: bool = True, sync: bool = True) -> None:
    """Write to a temporary file, sync, rename: a reader sees the old content or the new, never a part.

    A file outside of DPEXP_HOME is not ``private``. One that may be lost with the machine, and whose reader
    notices a part of it, needs no ``sync``, which may take long. Raises OSError, and leaves no temporary
    file behind. That of a killed process is no longer locked: ``remove_temporary`` removes it.
    """
    temporary, opened = open_temporary(path, private=private)
    with opened as file:
        try:
            file.write(content)
            file.flush()
            if sync:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    if sync:
        sync_folder(path.parent)


def open_temporary(path: Path, *, private: bool = True) -> tuple[Path, BinaryIO]:
    """A new file beside ``path``, locked: no one can guess its name, and no link there is followed.

    Raises OSError.
    """
    mode = 0o600 if private and not is_shared() else 0o666
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        file = os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb")
        if _is_locked(file) and temporary.exists():
            return temporary, file
        file.close()


def _is_locked(file: BinaryIO) -> bool:
    """Lock a new file; False where ``remove_temporary`` was faster. A disk without locks keeps all."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True


def is_temporary(name: str) -> bool:
    """Whether ``write_atomically`` makes files of this name, or has made them."""
    return name.startswith(".") and bool(_TEMPORARY.fullmatch(name) or _EARLIER.fullmatch(name))


def remove_temporary(folder: Path, names: Iterable[str]) -> None:
    """Remove the files of these names that ``write_atomically`` made, and whose writers have died."""
    for name in filter(is_temporary, names):
        gone = contextlib.suppress(OSError)  # its writer lives, or has just ended; or it is another user's
        with gone, open(folder / name, "rb", opener=private_opener) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            earlier = _EARLIER.fullmatch(name)
            if earlier is None or not _may_be_written(file, int(earlier[1])):
                (folder / name).unlink()


def _may_be_written(file: BinaryIO, process: int) -> bool:
    """Whether the process of this id is alive, here or elsewhere, and may be writing the file."""
    if os.path.exists(f"/proc/{process}"):
        return True
    return time.time() - os.fstat(file.fileno()).st_mtime < _WRITTEN_S


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable (a new or renamed file is lost without it)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
