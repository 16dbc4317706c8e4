"""Uploader: the main process's handle on the process that delivers its run to MLflow.

Commands go down a pipe, one line each; a single answer, the Delivery, comes back at the end. The pipe
never blocks the main process: when it is full, a poke to read on is dropped, because the worker reads
the journal anyway. When the main process dies, however it dies, the worker sees the pipe close.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from dpexp.config.child_processes import python_path


@dataclass(frozen=True)
class Delivery:
    """How the delivery of a run ended.

    ``message`` is one line: where to look, or why it is incomplete and how to deliver.
    """

    complete: bool
    message: str
    experiment_id: str | None = None
    mlflow_run_id: str | None = None

    def to_line(self) -> bytes:
        """One line of JSON, as the worker answers."""
        return json.dumps(self.__dict__).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Delivery:
        """The inverse of ``to_line``. Raises ValueError for anything else."""
        return cls(**json.loads(line))


def how_to_deliver(run_id: str) -> str:
    """The command that delivers a run later."""
    return f"python scripts/runs.py sync {run_id}"


_left: list[subprocess.Popen[bytes]] = []
"""Workers that were not waited for: kept until they have ended, so that none stays a zombie."""


class Uploader:
    """One uploader process. ``start`` it early: it imports mlflow while the main process imports torch."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._commands = process.stdin.fileno()
        self._answers = process.stdout.fileno()
        self._run_id = ""
        os.set_blocking(self._commands, False)

    @classmethod
    def start(cls, home: Path) -> Uploader:
        """Start the process and return without waiting for it.

        It has a session of its own, so that Ctrl-C and a closed terminal do not reach it.
        """
        _left[:] = [process for process in _left if process.poll() is None]
        process = subprocess.Popen(
            [sys.executable, "-m", "dpexp.tracking.worker", str(home), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=os.environ | {"PYTHONPATH": python_path()},
            start_new_session=True,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        """The process id of the worker."""
        return self._process.pid

    def open(self, journal: Path, *, again: bool = False) -> None:
        """The run has begun, or begun ``again``: deliver from this journal. Never blocks."""
        self._run_id = journal.parent.name
        self._tell({"do": "open", "journal": str(journal.resolve()), "again": again})

    def read_on(self) -> None:
        """There is more in the journal. Never blocks, and costs one small write."""
        self._tell({"do": "read"})

    def finish(self, timeout_s: float) -> Delivery:
        """The journal is complete: wait for the last delivery until ``timeout_s`` seconds or Ctrl-C."""
        deadline = time.monotonic() + timeout_s
        self._tell({"do": "finish", "timeout_s": timeout_s})
        try:
            return Delivery.from_line(self._answer(deadline))
        except KeyboardInterrupt:
            how = how_to_deliver(self._run_id)
            return Delivery(False, f"interrupted while waiting; the uploader continues; to make sure: {how}")
        except (ValueError, TypeError):
            return Delivery(False, self._why_silent(timeout_s))
        finally:
            self._close()

    def abandon(self) -> None:
        """No run ever began: the process ends and the store stays as it was."""
        self._tell({"do": "abandon"})
        self._close()

    def _tell(self, command: dict[str, object]) -> None:
        # A full pipe means that the worker is far behind and will read everything anyway; a broken
        # one that it died, which `finish` reports.
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._commands, json.dumps(command).encode() + b"\n")

    def _answer(self, deadline: float) -> bytes:
        """The worker's line; empty when it ended or the time is up."""
        received = b""
        while not received.endswith(b"\n"):
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._answers, 65536) if ready else b""
            if not chunk:
                return b""
            received += chunk
        return received

    def _close(self) -> None:
        """Close both pipes: the worker ends by itself, and is not waited for."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        _left.append(self._process)

    def _why_silent(self, timeout_s: float) -> str:
        how = how_to_deliver(self._run_id)
        try:
            code = self._process.wait(0.2)
        except subprocess.TimeoutExpired:
            return f"not delivered within {timeout_s:g} s; the uploader goes on alone; to make sure: {how}"
        end = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return f"not delivered: the uploader {end}; the journal is complete, deliver it with: {how}"
