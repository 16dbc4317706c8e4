"""What a folder or a machine may lack: a test that needs it is skipped, and says why."""

import functools
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")

checkout = pytest.mark.skipif(
    not (ROOT / ".git").exists(), reason="no .git here, as in a ZIP of the repository"
)


@functools.cache
def can_mount() -> bool:
    """Whether this user may make a user namespace, which some systems and containers forbid."""
    if shutil.which("unshare") is None:
        return False
    words = [*UNSHARE, "mount", "-t", "tmpfs", "none", "/tmp"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def disk(folder: Path, options: str) -> tuple[str, ...]:
    """A command prefix under which the folder is a file system of its own, as ``size=512k``; or a skip."""
    if not can_mount():
        pytest.skip("this user cannot mount a file system in a namespace of unshare")
    folder.mkdir(exist_ok=True)
    mount = f'mount -t tmpfs -o {options} none "$0" && exec "$@"'
    return (*UNSHARE, "sh", "-c", mount, str(folder))
