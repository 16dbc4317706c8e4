"""Uploader: the main process's handle on the process that delivers its run to MLflow.

Commands go down a pipe, one line each; a single line comes back at the end, the Delivery. The pipe never
blocks the main process: when it is full, ``read_on`` is dropped, because the uploader process reads the
journal at intervals anyway. When the main process dies, however it dies, the pipe closes.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired

from dpexp.config.process import command, python_path


@dataclass(frozen=True)
class Delivery:
    """How a delivery ended; ``message``: where to look, or why it is incomplete and how to complete it."""

    complete: bool
    message: str
    experiment_id: str | None = None
    mlflow_run_id: str | None = None


def how_to_deliver(run_id: str) -> str:
    """The command that delivers a run later."""
    return f"{command('runs')} sync {run_id}"


INTERRUPT_INTERVAL_S = 0.1
_END_S = 10.0  # for the end of a process that has closed its pipe
_unreaped: list[Popen[bytes]] = []
"""Uploader processes whose exit code was not read yet: kept so that none stays a zombie."""


class Uploader:
    """One uploader process. ``start`` it early: it imports mlflow while the main process imports torch."""

    def __init__(self, process: Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._commands = process.stdin
        self._results = process.stdout
        self._run_id = ""
        self._received = b""
        os.set_blocking(self._commands.fileno(), False)

    @classmethod
    def start(cls, home: Path) -> Uploader:
        """Start the process without waiting for it, in its own session, which Ctrl-C does not reach."""
        _unreaped[:] = [process for process in _unreaped if process.poll() is None]
        command = [sys.executable, "-P", "-m", "dpexp.tracking.process.uploader_process", str(os.getpid())]
        env = os.environ | {"DPEXP_HOME": str(home), "PYTHONPATH": python_path()}
        process = Popen(
            command, bufsize=0, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=env, start_new_session=True
        )
        return cls(process)

    @property
    def pid(self) -> int:
        """The process id of the uploader process."""
        return self._process.pid

    def open(self, journal: Path, *, again: bool = False) -> None:
        """The run has begun, or begins ``again``: deliver this journal. Never blocks."""
        self._run_id = journal.parent.name
        self._send({"do": "open", "journal": str(journal.resolve()), "again": again})

    def read_on(self) -> None:
        """The journal has new lines. Never blocks, and costs one small write."""
        self._send({"do": "read"})

    def complete(self) -> None:
        """The journal is complete: deliver the rest, for which ``finish`` waits. Never blocks."""
        if not self._commands.closed:
            self._send({"do": "finish"})
            self._commands.close()  # which says the same where the pipe was full

    def finish(self, timeout_s: float, is_interrupted: Callable[[], bool] = lambda: False) -> Delivery:
        """``complete``, then wait for the last delivery, for ``timeout_s`` or until an interrupt."""
        self.complete()  # without effect where it was called before
        try:
            with contextlib.suppress(KeyboardInterrupt):
                if self._wait(timeout_s, is_interrupted):
                    return self._delivery(timeout_s)
        finally:
            self._close()
        message = "interrupted while waiting; the uploader continues; to make sure: "
        return Delivery(False, message + how_to_deliver(self._run_id))

    def _wait(self, timeout_s: float, is_interrupted: Callable[[], bool]) -> bool:
        """Wait until the uploader process sends its result or ends, or is late; False after an interrupt."""
        deadline = time.monotonic() + timeout_s
        while not is_interrupted():
            left = deadline - time.monotonic()
            if self._line(max(0.0, min(left, INTERRUPT_INTERVAL_S))) is not None or left <= 0:
                return True
        return False

    def _line(self, timeout_s: float = 0.0) -> bytes | None:
        """What the uploader process sent: None if nothing yet, nothing more after its end."""
        if not self._received and select.select([self._results], [], [], timeout_s)[0]:
            self._received = os.read(self._results.fileno(), 65536)  # written at once
            return self._received
        return self._received or None

    def abandon(self) -> None:
        """No run began: the process ends, and the store stays unchanged."""
        self._send({"do": "abandon"})
        self._close()

    def _send(self, command: dict[str, object]) -> None:
        # Full: the uploader process is behind and will read everything anyway. Broken: `finish` reports it.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._commands.fileno(), json.dumps(command).encode() + b"\n")

    def _close(self) -> None:
        self._commands.close()
        self._results.close()
        _unreaped.append(self._process)

    def _delivery(self, timeout_s: float) -> Delivery:
        """What the uploader process reported, or why it did not."""
        line = self._line()
        if line is None:
            # It may end just now. What it sends before is read afterwards.
            code = self._exit_code(0.2)
            line = self._line()
        else:
            code = None if line else self._exit_code(_END_S)
        if line:
            return Delivery(**json.loads(line))
        command = how_to_deliver(self._run_id)
        if code is None:
            message = f"not delivered within {timeout_s:g} s; the uploader continues; to make sure: {command}"
            return Delivery(False, message)
        end = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return Delivery(
            False, f"not delivered: the uploader {end}; the journal is complete, deliver it with: {command}"
        )

    def _exit_code(self, timeout_s: float) -> int | None:
        """The exit code of the uploader process; None if it is still running."""
        try:
            return self._process.wait(timeout_s)
        except TimeoutExpired:
            return None
