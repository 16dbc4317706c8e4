"""This process and its children: where dpexp is, DPEXP_HOME, and what a child process inherits."""

import contextlib
import ctypes
import os
import signal
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The folder that ``dpexp`` is imported from."""


def home() -> Path:
    """The folder of the runs, the MLflow store and its artifacts: ``DPEXP_HOME``, else ``ROOT``. Absolute."""
    path = os.environ.get("DPEXP_HOME")
    return Path(path).expanduser().resolve() if path else ROOT


def python_path(root: Path = ROOT) -> str:
    """PYTHONPATH for a child process that imports the ``dpexp`` in ``root``."""
    return os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")]))


def end_with_parent(sign: signal.Signals) -> None:
    """Let the kernel send this process the signal when its parent ends (Linux; elsewhere no effect)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, sign)  # PR_SET_PDEATHSIG
