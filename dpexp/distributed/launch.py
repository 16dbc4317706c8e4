"""Launch: torchrun's agent, in this process, starts the ranks of this host and watches them.

launch --> torchrun's agent --> rank 0: python -P -c ENTRY --> RankResult --+--> launch returns the results,
           |                --> rank 1: python -P -c ENTRY --> RankResult --+    and what ended them early
           +-- a rank is lost: all ranks end

A run is judged by its Record and the results of its ranks, never by their exit codes: a teardown may fail.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from dpexp.config.errors import Terminated, VerificationError
from dpexp.config.process import cores, end_with_parent, python_path
from dpexp.distributed.world import RUN_ID
from dpexp.record.files import write_atomically
from dpexp.record.record import Record

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


class RanksError(RuntimeError):
    """The run failed in its ranks, or they did not start.

    ``is_cause``: a rank was killed, or ended itself, which explains why the others lost contact with it.
    """

    is_cause = False


def launch(job: Job, count: int, entry: str, run_id: str) -> tuple[list[RankResult], BaseException | None]:
    """Start ``count`` ranks on this host, each ``python -P -c ENTRY``, and wait for their results.

    The second value is what ended them early, as far as torchrun knows: RanksError, or KeyboardInterrupt or
    Terminated where a signal ended this process.
    """
    with tempfile.TemporaryDirectory(prefix="dpexp-") as folder:
        environment = {
            JOB: json.dumps(asdict(job)),
            LAUNCHER: str(os.getpid()),
            RESULTS: folder,
            RUN_ID: run_id,
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, (cores() - 1) // count)),
            "PYTHONPATH": python_path(),
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            # the first rank holds their store, as on several hosts: its end is the end of what they wait for
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        with _environment(environment):
            error = _run_agent(count, entry, Path(folder))
        results = [RankResult(**json.loads(file.read_bytes())) for file in Path(folder).glob("[0-9]*.json")]
        return sorted(results, key=lambda each: each.rank), error


def error_of(record: Record | None, fault: BaseException | None) -> BaseException | None:
    """What ended the ranks early, as their Record has it, or as torchrun says.

    A signal to the launcher, or the end of a rank, is why they ended, whatever the Record says.
    """
    if record is not None and record.status == "finished":
        return None
    if isinstance(fault, KeyboardInterrupt | Terminated) or getattr(fault, "is_cause", False):
        return fault
    if record is not None and record.error:
        if record.error["type"] == VerificationError.__name__:
            return VerificationError.of_record(record.error["message"], record.verification)
        return RanksError(record.error["message"])
    return fault or RanksError("the ranks ended without a Record")


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """The environment of torchrun's agent and the ranks; nothing is logged, since ``_run_agent`` reports.

    Afterwards all is as before, the signal handlers too, which the agent replaces.
    """
    before, level = os.environ.copy(), logging.root.manager.disable
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    os.environ.update(variables)
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)
        os.environ.clear()
        os.environ.update(before)
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _run_agent(count: int, entry: str, folder: Path) -> BaseException | None:
    """Run torchrun's agent until the ranks have ended; what ended them early, as one of our errors."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    agent = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id="dpexp",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        local_addr="localhost",
        logs_specs=DefaultLogsSpecs(str(folder), redirects=dict.fromkeys(range(1, count), Std.ALL)),
    )
    try:
        elastic_launch(agent, sys.executable)("-P", "-c", entry)
    except ChildFailedError as error:
        failures = error.failures.items()
        causes = [each for each in failures if each[1].exitcode not in (0, 1)]  # ours are 0 and 1
        fault = RanksError(_describe_failure(*(causes or [error.get_first_failure()])[0], folder))
        fault.is_cause = bool(causes)
        return fault
    except SignalException as error:
        interrupted = error.sigval == signal.SIGINT
        return KeyboardInterrupt() if interrupted else Terminated(f"ended by {error.sigval.name}")
    except (RendezvousError, OSError, RuntimeError) as error:
        return RanksError(f"the ranks cannot meet on this host: {str(error).splitlines()[0]}")
    return None


def _describe_failure(rank: int, failure: Any, folder: Path) -> str:
    """Which rank ended, how, and the last line of its stderr."""
    code, last_line = failure.exitcode, ""
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    for path in sorted(folder.glob(f"**/{failure.local_rank}/stderr.log")):
        lines = path.read_text(errors="replace").strip().splitlines()
        last_line = f": {lines[-1]}" if lines else last_line
    return f"rank {rank} on host {os.uname().nodename} (process {failure.pid}) {how}{last_line}"


# --- in a rank ---


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
