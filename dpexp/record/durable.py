"""Files that survive a crash: written completely or not at all, with durable names."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write to a temporary file, sync, rename: a reader sees the old content or the new, never a part.

    Raises OSError, and leaves no temporary file behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable (a new or renamed file is lost without it)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
