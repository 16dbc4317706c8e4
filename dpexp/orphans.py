"""Orphans: a process that does not outlive the one that started it (Linux; elsewhere it does)."""

from __future__ import annotations

import contextlib
import ctypes
import signal

PR_SET_PDEATHSIG = 1


def end_with_parent(sign: signal.Signals) -> None:
    """Let the kernel send this signal when the parent dies, however it dies."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, sign)
