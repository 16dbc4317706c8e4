"""Launch: torchrun's agent, in this process, starts the ranks of this host and watches them.

launch --> torchrun's agent --> rank 0: python -P -c ENTRY --> RankResult --+--> launch returns the results,
           |                --> rank 1: python -P -c ENTRY --> RankResult --+    and what ended them early
           +-- a rank is lost: all ranks end

A run is judged by its Record and the results of its ranks, never by their exit codes: a teardown may fail.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from dpexp.config.errors import Terminated, VerificationError
from dpexp.config.process import cores, python_path
from dpexp.distributed.job import JOB, LAUNCHER, RESULTS, Job, RankResult
from dpexp.distributed.world import RUN_ID
from dpexp.record.record import Record


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
    code, last_line = failure.exitcode, ""
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    for path in sorted(folder.glob(f"**/{failure.local_rank}/stderr.log")):
        lines = path.read_text(errors="replace").strip().splitlines()
        last_line = f": {lines[-1]}" if lines else last_line
    return f"rank {rank} on host {os.uname().nodename} (process {failure.pid}) {how}{last_line}"
