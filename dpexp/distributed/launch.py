"""Launch: torchrun's agent, in this process, starts the ranks of this host and watches them.

launch --> torchrun's agent --> rank 0: python -P -c ENTRY --> RankResult --+--> launch returns the results,
           |                --> rank 1: python -P -c ENTRY --> RankResult --+    and the error of the agent
           +-- a rank is lost, or a host joins: all ranks start again, from their last snapshot

The ranks read their Job from a file: a command line would show it, and what it has from the environment, to
every user of the machine.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dpexp.config.printable import printable
from dpexp.config.process import end_with_parent, python_path
from dpexp.config.strategy_options import LaunchOptions
from dpexp.distributed.rank_results import RESULTS, Job, RankResult, read_results
from dpexp.distributed.rendezvous import HeadAddress, host_range, local_address, parse_endpoint, resolve
from dpexp.distributed.signals import Terminated
from dpexp.record.journal.temporary_folder import temporary_folder
from dpexp.record.redact import redact

LAUNCH = "DPEXP_LAUNCH"  # in a rank's environment: the id of its launch, empty if several hosts launch
LAUNCHER = "DPEXP_LAUNCHER"  # the process id of its launcher
LOGGERS = "torch.distributed"
_signals: list[BaseException] = []
"""What ended torchrun's agents, kept to the end of this process with their rendezvous."""


class LaunchError(RuntimeError):
    """The ranks did not start, or one ended without a RankResult: which, on which host, and how.

    ``is_cause``: it was killed, or ended itself, which explains why the other ranks lost contact with it.
    """

    is_cause = False


def launch(
    config: dict[str, Any], options: LaunchOptions, count: int, entry: str, *, quiet: bool
) -> tuple[list[RankResult], BaseException | None]:
    """Start ``count`` ranks on this host, each ``python -P -c ENTRY``, and wait for their results.

    ``config`` is flat, as ``RunConfig.to_dict`` makes it, and ``options`` are those of its strategy.

    The second value is what ended them early, as far as torchrun knows: LaunchError, or KeyboardInterrupt or
    Terminated where a signal ended this process. Raises ConfigError for options that cannot work.
    """
    with temporary_folder("ranks") as folder, _environment(options, count, str(folder)):
        Job(config, quiet, sys.argv).write(folder)
        agent = _agent_config(options, count, folder)
        with _watchdog(options, folder):
            error = _run_agent(agent, options, entry, folder)
        _relay(folder)
        return read_results(folder), error


def end_with_launcher() -> None:
    """Called first in a rank: kill this process when its launcher ends.

    torchrun's agent ends its ranks when it is interrupted or terminated, but not when it is killed: they
    would train on, and nothing would end them. To other hosts SIGKILL looks like a lost host, without which
    they start again.
    """
    launcher = int(os.environ.get(LAUNCHER) or os.getppid())
    end_with_parent(signal.SIGKILL)
    if os.getppid() != launcher:  # it ended before the kernel knew
        os._exit(1)


def end_launcher() -> None:
    """Called last in a rank: terminate its launcher, which would wait 300 s for one that has ended."""
    os.kill(int(os.environ[LAUNCHER]), signal.SIGTERM)


# --- starting ---


@contextmanager
def _environment(options: LaunchOptions, count: int, folder: str) -> Iterator[None]:
    """The environment of torchrun's agent and the ranks. Its loggers are silent: ``_run_agent`` reports."""
    import torch.distributed.launcher.api  # noqa: F401 - sets the levels of its loggers

    names = [name for name in logging.root.manager.loggerDict if name.startswith(LOGGERS)]
    environment, loggers = os.environ.copy(), [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    os.environ |= {
        LAUNCH: secrets.token_hex(6) if host_range(options)[1] == 1 else "",
        LAUNCHER: str(os.getpid()),
        "OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // count)),
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


def _agent_config(options: LaunchOptions, count: int, logs: Path) -> Any:
    """The ``LaunchConfig`` of torchrun's agent. Raises ConfigError."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.launcher.api import LaunchConfig

    fewest, most = host_range(options)
    # Hosts that wait look once a second whether they can join: with 1 s the others may begin without them.
    rendezvous: dict[str, Any] = {"join_timeout": options.join_timeout, "last_call_timeout": 2}
    endpoint, address = "localhost:0", "localhost"
    if most > 1:
        endpoint = options.rdzv_endpoint
        host, port = parse_endpoint(endpoint)
        address = local_address(host, port)
        is_head = resolve(host) == address
        address = HeadAddress(address) if is_head else address
        rendezvous |= {"is_host": is_head, "read_timeout": options.comm_timeout}
    return LaunchConfig(
        min_nodes=fewest,
        max_nodes=most,
        nproc_per_node=count,
        run_id="dpexp",
        rdzv_backend="c10d",
        rdzv_endpoint=endpoint,
        rdzv_configs=rendezvous,
        max_restarts=options.max_restarts,
        local_addr=address,
        logs_specs=DefaultLogsSpecs(str(logs), redirects=dict.fromkeys(range(1, count), Std.ALL)),
    )


def _relay(logs: Path) -> None:
    """Print on stderr what the ranks printed whose stdout is a file, each line once."""
    for path in sorted(logs.glob("**/stdout.log")):
        for line in dict.fromkeys(path.read_text(errors="replace").splitlines()):
            print(redact(line), file=sys.stderr)


# --- watching ---


@contextmanager
def _watchdog(options: LaunchOptions, folder: Path) -> Iterator[None]:
    """End this process if its ranks have ended and torchrun's agent waits for an answer over a cut link."""
    fewest, most = host_range(options)
    if most == 1:  # there is no link to cut
        yield
        return
    restarts = options.max_restarts or fewest < most
    limit_s = options.comm_timeout + (options.join_timeout if restarts else 0.0)
    ended = threading.Event()

    def watch() -> None:
        idle_since = time.monotonic()
        while not ended.wait(0.5):
            results = read_results(folder)
            if not results or _has_children():
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > limit_s:
                print(printable(redact(f"error: {results[0].message}")), file=sys.stderr, flush=True)
                os._exit(1)

    thread = threading.Thread(target=watch, daemon=True, name="watchdog")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()  # it reads the folder, which is removed next


def _has_children() -> bool:
    """Whether a child of this process runs; a zombie has ended."""
    import psutil

    def runs(child: psutil.Process) -> bool:
        with suppress(psutil.NoSuchProcess):  # reaped since it was listed
            return bool(child.status() != psutil.STATUS_ZOMBIE)
        return False

    return any(map(runs, psutil.Process().children()))


# --- reporting ---


def _run_agent(agent: Any, options: LaunchOptions, entry: str, logs: Path) -> BaseException | None:
    """Run torchrun's agent until the ranks have ended; what ended them early, as one of our errors."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousTimeoutError
    from torch.distributed.launcher.api import elastic_launch

    try:
        elastic_launch(agent, sys.executable)("-P", "-c", entry)
    except ChildFailedError as error:
        fault = LaunchError(_describe_failure(error, logs))
        fault.is_cause = error.get_first_failure()[1].exitcode not in (0, 1)  # ours are 0 and 1
        return fault
    except SignalException as error:
        # torchrun does not close its rendezvous here. Its thread, where it held the last reference to it,
        # would wait for itself to end.
        _signals.append(error)
        interrupted = error.sigval == signal.SIGINT
        return KeyboardInterrupt() if interrupted else Terminated(f"ended by {error.sigval.name}")
    except RendezvousTimeoutError:
        return LaunchError(
            f"fewer than {options.nnodes} hosts met at {options.rdzv_endpoint} within "
            f"{options.join_timeout:g} s (--join-timeout): is the command running on every host, with "
            "the same --nnodes and --rdzv-endpoint?"
        )
    except (RendezvousError, OSError, RuntimeError) as error:
        endpoint = options.rdzv_endpoint
        reason = f"{error} {error.__cause__ or ''}"
        if "EADDRINUSE" in reason or "already in use" in reason:
            return LaunchError(f"port of --rdzv-endpoint {endpoint} is in use on this host: choose another")
        reason = str(error).splitlines()[0]
        return LaunchError(f"the hosts cannot meet at {endpoint or 'this host'}: {reason}")
    return None


def _describe_failure(error: Any, logs: Path) -> str:
    """Which rank ended first, how, and the last line of its stderr."""
    rank, failure = error.get_first_failure()
    code = failure.exitcode
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    last_line = ""
    for path in sorted(logs.glob(f"**/{failure.local_rank}/stderr.log")):
        lines = path.read_text(errors="replace").strip().splitlines()
        last_line = f": {lines[-1]}" if lines else last_line
    return f"rank {rank} on host {os.uname().nodename} (process {failure.pid}) {how}{last_line}"
