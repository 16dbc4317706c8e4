"""Driver processes and their uploaders: started, awaited, and none left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
DRIVER = Path(__file__).with_name("tracking_driver.py")
PATIENCE_S = 120


@dataclass
class Driven:
    """A driver that has begun its run."""

    process: subprocess.Popen[str]
    run_id: str
    uploader: int

    def delivery(self) -> dict[str, Any]:
        """What the driver was told at its end; it must have got there, without a word on stderr."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        assert err == ""
        found: dict[str, Any] = json.loads(out)
        return found

    def over(self) -> int:
        """Wait until driver and uploader have ended; returns the driver's exit code."""
        self.process.communicate(timeout=PATIENCE_S)
        wait_until_gone(self.uploader)
        return self.process.returncode


def drive(
    how: str,
    steps: int = 50,
    pause_s: float = 0.05,
    wait_s: float = 60.0,
    before: tuple[str, ...] = (),
    **variables: str,
) -> Driven:
    """Start a driver; returns when its run has begun."""
    command = [*before, sys.executable, str(DRIVER), how, str(steps), str(pause_s), str(wait_s)]
    process = subprocess.Popen(
        command, env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = process.stdout.readline().split()
    if len(said) != 2:
        raise AssertionError(f"the driver did not begin: {process.communicate()}")
    return Driven(process, said[0], int(said[1]))


def script(name: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """One of the scripts, to its end."""
    command = [sys.executable, str(ROOT / "scripts" / name), *map(str, arguments)]
    return subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def is_gone(pid: int) -> bool:
    """Whether the process has ended, though nobody may have asked for its exit code yet."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(pid: int) -> None:
    """Until the process has ended."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_gone(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)
