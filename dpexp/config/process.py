"""This process and its children: where dpexp is, its commands, DPEXP_HOME, and what a child process inherits.

dpexp runs from a checkout of its repository, or as an installed package (``pip install .``).
"""

import contextlib
import ctypes
import functools
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The folder that ``dpexp`` is imported from."""


def is_checkout() -> bool:
    """Whether ``ROOT`` is a checkout of the repository, and not a folder of installed packages."""
    return (ROOT / "pyproject.toml").is_file() and (ROOT / "scripts" / "run.py").is_file()


def working_root() -> Path:
    """The checkout, or the working directory where dpexp is installed."""
    return ROOT if is_checkout() else Path.cwd()


def home() -> Path:
    """The folder of the runs, the MLflow store and its artifacts: ``DPEXP_HOME``, else ``working_root()``.

    Absolute.
    """
    path = os.environ.get("DPEXP_HOME")
    return Path(path).expanduser().resolve() if path else working_root()


UI_PORT = 5000
"""The port of ``ui`` unless ``--port`` names another."""


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def command(app: str) -> str:
    """How a user starts an app here: ``python scripts/run.py``, or ``dpexp run`` where dpexp is installed."""
    return f"python scripts/{app}.py" if is_checkout() else f"dpexp {app}"


def python_path() -> str:
    """PYTHONPATH for a child process that imports this ``dpexp``; it finds an installed one."""
    roots = [str(ROOT)] if is_checkout() else []
    return os.pathsep.join([*roots, *filter(None, [os.environ.get("PYTHONPATH")])])


def end_with_parent(sign: signal.Signals) -> None:
    """Let the kernel send this process the signal when its parent ends (Linux; elsewhere no effect)."""
    with contextlib.suppress(OSError, AttributeError):
        c_library().prctl(1, sign)  # PR_SET_PDEATHSIG


@contextlib.contextmanager
def rarer_garbage_collection(objects: int) -> Iterator[None]:
    """Garbage is searched for after so many new objects, if that is more than usual."""
    usual, *others = gc.get_threshold()
    if usual:  # else it is off
        gc.set_threshold(max(usual, objects), *others)
    try:
        yield
    finally:
        gc.set_threshold(usual, *others)


@functools.cache
def c_library() -> ctypes.CDLL:
    """The C library. It is loaded before a fork: a thread that the child lacks may hold the loader's lock."""
    return ctypes.CDLL(None)
