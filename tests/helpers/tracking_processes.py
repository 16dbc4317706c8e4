"""Starts drivers (``tracking_driver.py``), and waits for them and their followers."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from helpers.command_lines import PATIENCE_S

DRIVER = Path(__file__).with_name("tracking_driver.py")
TIMEOUT_S = PATIENCE_S
"""How long to wait for an event: far longer than it takes on a busy machine."""


@dataclass
class Driver:
    """A driver whose run has begun: its process is a new one, and so is its follower."""

    process: subprocess.Popen[str]
    run_id: str
    follower: int

    def record(self, steps: int) -> None:
        """Let a driver that was started with ``held`` record more steps."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()

    def delivery(self) -> dict[str, Any]:
        """The Delivery that the driver received; it must have ended without output on stderr."""
        out, err = self.process.communicate(timeout=TIMEOUT_S)
        assert err == ""
        delivery: dict[str, Any] = json.loads(out.splitlines()[-1])
        return delivery

    def wait(self) -> int:
        """Wait until driver and follower have ended; returns the driver's exit code."""
        self.process.communicate(timeout=TIMEOUT_S)
        wait_until_gone(self.follower)
        return self.process.returncode


def drive(
    end: str,
    steps: int = 50,
    *,
    held: bool = False,
    wait_s: float = TIMEOUT_S,
    before: tuple[str, ...] = (),
    **variables: str,
) -> Driver:
    """Start a driver, after the words ``before`` its own; returns when its run has begun.

    With ``held`` it does not end before ``delivery`` or ``wait`` is called.
    """
    process = subprocess.Popen(
        [*before, sys.executable, str(DRIVER), end, str(steps), str(wait_s)],
        env=os.environ | variables,
        stdin=subprocess.PIPE if held else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    ids = process.stdout.readline().split()
    if len(ids) != 2:
        raise AssertionError(f"the driver did not begin: {process.communicate()}")
    return Driver(process, ids[0], int(ids[1]))


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition is true; an AssertionError that names it if it stays false."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"not after {TIMEOUT_S} s: {what}"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """Whether all threads of the process have ended, and its locks are free; its exit code may wait."""
    try:
        process = psutil.Process(pid)
        return bool(process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1)
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(pid: int) -> None:
    """Wait until the process has ended."""
    wait_until(lambda: is_gone(pid), f"the end of process {pid}")
