"""Follow: the main process's handle on the follower, the process that delivers its run to MLflow.

Nothing is sent between the two: the follower reads the journal and its lock, the main process waits for its
exit. So neither can hold up the other, and the death of one changes nothing for the other.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired

from dpexp.config.process import command, python_path
from dpexp.record.journal import JOURNAL
from dpexp.tracking import ledger
from dpexp.tracking.ledger import Delivery
from dpexp.tracking.store import Store

MODULE = "dpexp.tracking.follower"
INTERRUPT_INTERVAL_S = 0.1
_unreaped: list[Popen[bytes]] = []
"""Followers whose exit code was not read yet: kept so that none stays a zombie."""


class Follower:
    """The follower of the run that this process records. ``start`` it early: it imports mlflow meanwhile."""

    def __init__(self, process: Popen[bytes], folder: Path) -> None:
        self._process, self._folder = process, folder
        self.pid = process.pid

    @classmethod
    def start(cls, home: Path, run_id: str) -> Follower:
        """Start the process without waiting for it, in its own session, which Ctrl-C does not reach."""
        _unreaped[:] = [process for process in _unreaped if process.poll() is None]
        folder = home / "runs" / run_id
        words = [sys.executable, "-P", "-m", MODULE, run_id, str(journal_bytes(folder)), str(os.getpid())]
        env = os.environ | {"DPEXP_HOME": str(home), "PYTHONPATH": python_path()}
        no = DEVNULL
        return cls(Popen(words, stdin=no, stdout=no, stderr=no, env=env, start_new_session=True), folder)

    def kill(self) -> None:
        """No run began: the follower has written nothing."""
        self._process.kill()
        self._process.wait()

    def wait(self, timeout_s: float, is_interrupted: Callable[[], bool] = lambda: False) -> Delivery:
        """Wait until all of the closed journal is delivered, for ``timeout_s`` or until an interrupt."""
        how = f"{command('runs')} sync {self._folder.name}"
        deadline, reason = time.monotonic() + timeout_s, f"not delivered within {timeout_s:g} s"
        with contextlib.suppress(KeyboardInterrupt):
            left = timeout_s
            while left >= 0 and not is_interrupted():
                with contextlib.suppress(TimeoutExpired):
                    return self._delivery(self._process.wait(min(left, INTERRUPT_INTERVAL_S)), how)
                left = deadline - time.monotonic()
        if time.monotonic() < deadline:
            reason = "interrupted while waiting"
        _unreaped.append(self._process)
        return Delivery(False, f"{reason}; delivery continues in the background; to make sure: {how}")

    def _delivery(self, code: int, how: str) -> Delivery:
        """What the follower did, by its exit code and the ledger."""
        store = Store.from_environment(self._folder.parents[1]).name
        message = ledger.read(self._folder).get(store, ledger.Entry()).message
        if code == 0:
            return Delivery(True, message)
        end = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        reason = message if message and code > 0 else f"its delivery {end}"
        return Delivery(False, f"not delivered: {reason}; the journal is complete, deliver it with: {how}")


def journal_bytes(folder: Path) -> int:
    """The size of the journal of a run; 0 where it has none."""
    with contextlib.suppress(OSError):
        return (folder / JOURNAL).stat().st_size
    return 0
