"""Launch: torchrun's agent, in this process, starts the ranks of this host and watches them.

launch --> torchrun's agent --> rank 0: python -P -c ENTRY --> RankResult --+--> launch returns the results,
           |                --> rank 1: python -P -c ENTRY --> RankResult --+    and the error of the agent
           +-- a rank is lost: all ranks start again

The ranks read their Job from a file: a command line would show it, and what it has from the environment, to
every user of the machine.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpexp.config.process import cores, end_with_parent, python_path
from dpexp.distributed.rank_results import RESULTS, Job, RankResult, read_results
from dpexp.distributed.signals import Terminated
from dpexp.record.redact import redact

LAUNCH = "DPEXP_LAUNCH"  # in a rank's environment: the id of its launch
LAUNCHER = "DPEXP_LAUNCHER"  # the process id of its launcher
LOGGERS = "torch.distributed"


def launched_run_id() -> str:
    """The run id that the first rank gives: the same after a restart by the same torchrun agent."""
    import psutil

    agent = os.getppid()
    identity = [os.uname().nodename, agent, psutil.Process(agent).create_time()]
    identity += [os.environ.get(name) for name in (LAUNCH, "TORCHELASTIC_RUN_ID")]
    return hashlib.sha256(repr(identity).encode()).hexdigest()[:12]


class LaunchError(RuntimeError):
    """The ranks did not start, or one ended without a RankResult: which, on which host, and how.

    ``is_cause``: it was killed, or ended itself, which explains why the other ranks lost contact with it.
    """

    is_cause = False


def launch(
    config: dict[str, Any], count: int, max_restarts: int, entry: str, *, quiet: bool
) -> tuple[list[RankResult], BaseException | None]:
    """Start ``count`` ranks on this host, each ``python -P -c ENTRY``, and wait for their results.

    ``config`` is flat, as ``RunConfig.to_dict`` makes it.

    The second value is what ended them early, as far as torchrun knows: LaunchError, or KeyboardInterrupt or
    Terminated where a signal ended this process.
    """
    with tempfile.TemporaryDirectory(prefix="dpexp-") as name, _environment(count, name):
        folder = Path(name)
        Job(config, quiet, sys.argv).write(folder)
        error = _run_agent(_agent_config(count, max_restarts, folder), entry, folder)
        _relay(folder)
        return read_results(folder), error


def end_with_launcher() -> None:
    """Called first in a rank: kill this process when its launcher ends.

    torchrun's agent ends its ranks when it is interrupted or terminated, but not when it is killed: they
    would train on, and nothing would end them.
    """
    launcher = int(os.environ.get(LAUNCHER) or os.getppid())
    end_with_parent(signal.SIGKILL)
    if os.getppid() != launcher:  # it ended before the kernel knew
        os._exit(1)


# --- starting ---


@contextmanager
def _environment(count: int, folder: str) -> Iterator[None]:
    """The environment of torchrun's agent and the ranks. Its loggers are silent: ``_run_agent`` reports."""
    import torch.distributed.launcher.api  # noqa: F401 - sets the levels of its loggers

    names = [name for name in logging.root.manager.loggerDict if name.startswith(LOGGERS)]
    environment, loggers = os.environ.copy(), [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    os.environ |= {
        LAUNCH: secrets.token_hex(6),
        LAUNCHER: str(os.getpid()),
        "OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS") or str(max(1, (cores() - 1) // count)),
        "PYTHONPATH": python_path(),
        RESULTS: folder,
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        # A shared store would give restarted ranks the addresses of those that ended.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ |= environment
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _agent_config(count: int, max_restarts: int, logs: Path) -> Any:
    """The ``LaunchConfig`` of torchrun's agent."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.launcher.api import LaunchConfig

    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id="dpexp",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=max_restarts,
        local_addr="localhost",
        logs_specs=DefaultLogsSpecs(str(logs), redirects=dict.fromkeys(range(1, count), Std.ALL)),
    )


def _relay(logs: Path) -> None:
    """Print on stderr what the ranks printed whose stdout is a file, each line once."""
    for path in sorted(logs.glob("**/stdout.log")):
        for line in dict.fromkeys(path.read_text(errors="replace").splitlines()):
            print(redact(line), file=sys.stderr)


# --- reporting ---


def _run_agent(agent: Any, entry: str, logs: Path) -> BaseException | None:
    """Run torchrun's agent until the ranks have ended; what ended them early, as one of our errors."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher.api import elastic_launch

    try:
        elastic_launch(agent, sys.executable)("-P", "-c", entry)
    except ChildFailedError as error:
        causes = [
            each for each in error.failures.items() if each[1].exitcode not in (0, 1)
        ]  # ours are 0 and 1
        fault = LaunchError(_describe_failure(*(causes or [error.get_first_failure()])[0], logs))
        fault.is_cause = bool(causes)
        return fault
    except SignalException as error:
        interrupted = error.sigval == signal.SIGINT
        return KeyboardInterrupt() if interrupted else Terminated(f"ended by {error.sigval.name}")
    except (RendezvousError, OSError, RuntimeError) as error:
        return LaunchError(f"the ranks cannot meet on this host: {str(error).splitlines()[0]}")
    return None


def _describe_failure(rank: int, failure: Any, logs: Path) -> str:
    """Which rank ended, how, and the last line of its stderr."""
    code = failure.exitcode
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    last_line = ""
    for path in sorted(logs.glob(f"**/{failure.local_rank}/stderr.log")):
        lines = path.read_text(errors="replace").strip().splitlines()
        last_line = f": {lines[-1]}" if lines else last_line
    return f"rank {rank} on host {os.uname().nodename} (process {failure.pid}) {how}{last_line}"
