"""Job: what a launcher tells its ranks, what each reports, and how its process ends. Without torch."""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from dpexp.config.process import end_with_parent
from dpexp.record.files import write_atomically

JOB = "DPEXP_JOB"
"""In the environment of a rank: its Job. Its command line would show it to every user of the machine."""
RESULTS = "DPEXP_RANK_RESULTS"
"""In the environment of a rank: the folder of the results; without it, there are none."""
LAUNCHER = "DPEXP_LAUNCHER"
"""In the environment of a rank: the process id of its launcher."""


@dataclass(frozen=True)
class Job:
    """What a rank does: the flat config of the run, and the command line that started it."""

    config: dict[str, Any]
    quiet: bool
    argv: list[str]

    @classmethod
    def of_rank(cls) -> Job:
        """The Job of this rank."""
        return cls(**json.loads(os.environ[JOB]))


@dataclass(frozen=True)
class RankResult:
    """How a rank ended. Only the first rank, which records, has ``delivery``."""

    rank: int
    status: str
    kind: str = ""
    message: str = ""
    delivery: dict[str, Any] | None = None

    def write(self) -> None:
        """Write it for the launcher, in place of an earlier one."""
        if folder := os.environ.get(RESULTS):
            write_atomically(Path(folder) / f"{self.rank}.json", json.dumps(asdict(self)).encode())


def end_with_launcher() -> None:
    """Called first in a rank: kill this process when its launcher ends.

    torchrun's agent ends its ranks when it is interrupted or terminated, but not when it is killed: they
    would train on, and nothing would end them.
    """
    launcher = int(os.environ.get(LAUNCHER) or os.getppid())
    end_with_parent(signal.SIGKILL)
    if os.getppid() != launcher:  # it ended before the kernel knew
        os._exit(1)


def end_rank(code: int) -> NoReturn:
    """End the process of a rank as the interpreter does, but free nothing and wait for no thread.

    A gloo thread of a process group aborts an interpreter that is ending («terminate called without an active
    exception»).
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # its reader has gone, or it is closed
            code = code or 1
    os._exit(code)
