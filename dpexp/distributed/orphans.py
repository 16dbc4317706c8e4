"""Orphans: a rank does not outlive its launcher.

torchrun's agent ends its ranks when it is interrupted or terminated. Killed outright, by hand or for its
memory, it cannot, and they would train on with nobody to restart them, to hear them, or to end them. At once
and without a word, as a lost host goes: the other hosts' agents then start the rest anew.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1
LAUNCHER = "DPEXP_LAUNCHER"
"""The environment variable in which a launcher of ours tells its ranks its process id."""


def die_with_launcher() -> None:
    """Let the kernel end this rank when its parent dies, however it dies (Linux). Called first of all."""
    launcher = int(os.environ.get(LAUNCHER) or os.getppid())
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:  # it died before the kernel was asked
        os._exit(1)
