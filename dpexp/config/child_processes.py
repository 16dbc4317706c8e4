"""Child processes: how they import this package, and how they end when their parent does."""

import contextlib
import ctypes
import os
import signal
from pathlib import Path

from dpexp.config.home import ROOT

PR_SET_PDEATHSIG = 1


def python_path(root: Path = ROOT) -> str:
    """PYTHONPATH for a child process that imports the ``dpexp`` in ``root``."""
    return os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")]))


def end_with_parent(sign: signal.Signals) -> None:
    """Let the kernel send this process the signal when its parent ends (Linux; elsewhere no effect)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, sign)
