"""Follow: the main process's handle on the follower, the process that delivers its run to MLflow.

Nothing is sent between the two: the follower reads the journal and its lock, the main process waits for its
exit, and sees from outside whether it makes progress. So neither can hold up the other, and the death of one
changes nothing for the other.
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
CPU_STEP_S = 0.1
"""The CPU time that is progress. Importing MLflow takes 1.5 s of it, and making its store 0.6 s. A process
that asks for a lock for 10 s takes 0.03 s, and one that waits for a server less."""
SAFE = "the run is safe on disk"
_unreaped: list[Popen[bytes]] = []
"""Followers whose exit code was not read yet: kept so that none stays a zombie."""


def _print_on_stderr(text: str) -> None:
    print(text, file=sys.stderr)


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
        words = [sys.executable, "-P", "-m", MODULE, run_id, str(os.getpid())]
        env = os.environ | {"DPEXP_HOME": str(home), "PYTHONPATH": python_path()}
        no = DEVNULL
        return cls(Popen(words, stdin=no, stdout=no, stderr=no, env=env, start_new_session=True), folder)

    def kill(self) -> None:
        """No run began: the follower has written nothing."""
        self._process.kill()
        self._process.wait()

    def wait(
        self,
        timeout_s: float,
        is_interrupted: Callable[[], bool] = lambda: False,
        say: Callable[[str], None] = _print_on_stderr,
    ) -> Delivery:
        """Wait until all of the closed journal is delivered, while the follower makes progress.

        Give up after ``timeout_s`` without progress, or at an interrupt. ``say`` gets what this waits for,
        once it takes longer than ``timeout_s``.
        """
        how, reason = f"{command('runs')} sync {self._folder.name}", "interrupted while waiting"
        began = latest = time.monotonic()
        before, is_said = self._progress(), False
        with contextlib.suppress(KeyboardInterrupt):
            while not is_interrupted():
                with contextlib.suppress(TimeoutExpired):
                    return self._delivery(self._process.wait(min(timeout_s, INTERRUPT_INTERVAL_S)), how)
                progress, now = self._progress(), time.monotonic()
                if progress != before:
                    before, latest = progress, now
                elif now - latest >= timeout_s:
                    reason = f"not delivered: no progress for {timeout_s:g} s while {self._stage()}"
                    break
                if now - began >= timeout_s and not is_said:
                    say(f"waiting: {self._stage()} takes long here; {SAFE}")
                    is_said = True
        _unreaped.append(self._process)
        return Delivery(
            False, f"{reason}; {SAFE}, and delivery continues in the background; to make sure: {how}"
        )

    def _progress(self) -> tuple[int, int]:
        """What changes while the follower works: its CPU time, and the ledger, which each batch changes."""
        import psutil  # a machine that only computes may lack it

        cpu_s, written = 0.0, 0
        with contextlib.suppress(psutil.Error):  # it has just ended
            times = psutil.Process(self.pid).cpu_times()
            cpu_s = times.user + times.system
        with contextlib.suppress(OSError):  # nothing was sent yet
            written = (self._folder / ledger.LEDGER).stat().st_mtime_ns
        return int(cpu_s / CPU_STEP_S), written

    def _stage(self) -> str:
        """What the follower does."""
        is_sending = self._entry().mlflow_run_id
        return "sending the run to MLflow" if is_sending else "importing MLflow and opening its store"

    def _entry(self) -> ledger.Entry:
        """What the store has of the run."""
        store = Store.from_environment(self._folder.parents[1]).name
        return ledger.read(self._folder).get(store, ledger.Entry())

    def _delivery(self, code: int, how: str) -> Delivery:
        """What the follower did, by its exit code and the ledger."""
        message = self._entry().message
        if code == 0:
            return Delivery(True, message)
        end = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        reason = message if message and code > 0 else f"its delivery {end}"
        return Delivery(False, f"not delivered: {reason}; {SAFE}; deliver it with: {how}")


def has_begun(folder: Path) -> bool:
    """Whether a run has a journal with a line in it."""
    with contextlib.suppress(OSError):
        return (folder / JOURNAL).stat().st_size > 0
    return False
