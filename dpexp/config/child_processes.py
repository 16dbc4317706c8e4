"""Child processes: how one finds this package, and how one ends when its parent does."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The folder that ``dpexp`` is imported from."""

PR_SET_PDEATHSIG = 1


def python_path(root: Path = ROOT) -> str:
    """PYTHONPATH for a child process that is to import the ``dpexp`` in ``root``."""
    return os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")]))


def end_with_parent(sign: signal.Signals) -> None:
    """Let the kernel send this signal when the parent ends, however it ends (Linux; elsewhere no effect)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, sign)
