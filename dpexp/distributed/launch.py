"""Launch: torchrun's own launcher, in this process, with the settings that several hosts need.

Each rank runs the entry point that the caller names; what ended them is reported here, once.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dpexp.config import ConfigError, LaunchOptions, RunConfig
from dpexp.config.child_processes import end_with_parent, python_path
from dpexp.distributed.rank_result import RankResult, results_folder

LAUNCH = "DPEXP_LAUNCH"
"""The environment variable that tells this process's launches apart: they all have one agent."""

LAUNCHER = "DPEXP_LAUNCHER"
"""The environment variable in which a launch tells its ranks this process's id."""

LOGGERS = ("torch.distributed", "torch.distributed.elastic")
ENVIRONMENT = {
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # sharing it, restarted ranks meet the dead ones' addresses
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "OMP_NUM_THREADS": "",
}


class LaunchError(RuntimeError):
    """The ranks could not be started, or ended without a word: which, where, and how.

    ``is_cause`` is True where that explains what the other ranks saw: one of them was killed.
    """

    is_cause = False


@dataclass(frozen=True)
class Job:
    """What a rank is to do: a run's config, and how the user started it."""

    config: dict[str, Any]
    quiet: bool
    argv: list[str]

    def to_json(self) -> str:
        return json.dumps(self.__dict__)


def launch(
    config: RunConfig, count: int, entry: str, *, quiet: bool
) -> tuple[list[RankResult], BaseException | None]:
    """Start ``count`` ranks on this host, each ``python -c ENTRY JOB``; return their results at the end.

    The second value is what ended them early as far as torchrun knows: LaunchError, or KeyboardInterrupt and
    Terminated where this process was asked to end. Raises ConfigError for options that cannot work.
    """
    from torch.distributed.launcher.api import elastic_launch

    job = Job(config.to_dict(), quiet, sys.argv)
    os.environ[LAUNCH] = secrets.token_hex(6) if hosts(_options(config))[1] == 1 else ""
    os.environ[LAUNCHER] = str(os.getpid())
    with (
        results_folder() as results,
        tempfile.TemporaryDirectory(prefix="dpexp-ranks-") as logs,
        _settings(count),
    ):
        started = _launch_config(config, count, logs)
        with _bounded(_options(config), results), _faults_named(config, logs) as faults:
            elastic_launch(started, sys.executable)("-c", entry, job.to_json())
        return results(), faults[0] if faults else None


def end_with_launcher() -> None:
    """In a rank, first of all: it dies when its launcher does.

    torchrun's agent ends its ranks when it is interrupted or terminated. Killed outright, by hand or for its
    memory, it cannot, and they would train on with nobody to restart them, to hear them, or to end them. At
    once and without a word, as a lost host goes: the other hosts' agents then start the rest anew.
    """
    launcher = int(os.environ.get(LAUNCHER) or os.getppid())
    end_with_parent(signal.SIGKILL)
    if os.getppid() != launcher:  # it died before the kernel was asked
        os._exit(1)


def _options(config: RunConfig) -> LaunchOptions:
    assert isinstance(config.options, LaunchOptions)
    return config.options


def _launch_config(config: RunConfig, count: int, logs: str) -> Any:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.launcher.api import LaunchConfig

    options = _options(config)
    fewest, most = hosts(options)
    rendezvous: dict[str, Any] = {"join_timeout": options.join_timeout, "last_call_timeout": 1}
    endpoint, address = "localhost:0", "localhost"
    if most > 1:
        endpoint, address, is_head = meeting(options)
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
        logs_specs=DefaultLogsSpecs(logs, redirects=dict.fromkeys(range(1, count), Std.ALL)),
    )


def hosts(options: LaunchOptions) -> tuple[int, int]:
    """(fewest, most) hosts of ``--nnodes``. Raises ConfigError."""
    fewest, _, most = options.nnodes.partition(":")
    try:
        low, high = int(fewest), int(most or fewest)
    except ValueError:
        low = high = 0
    if not 1 <= low <= high:
        raise ConfigError(f"--nnodes {options.nnodes}: it is a number of hosts, as 2, or fewest:most, as 1:2")
    if high > 1 and not options.rdzv_endpoint:
        raise ConfigError(
            f"--nnodes {options.nnodes}: say with --rdzv-endpoint HOST:PORT where the hosts meet, "
            "the same on each: the first host's address and a free port there"
        )
    return low, high


def meeting(options: LaunchOptions) -> tuple[str, str, bool]:
    """(endpoint, this host's address as the others see it, whether the endpoint is here)."""
    from dpexp.distributed.process_group import addresses_here, local_address, resolved

    host, colon, port = options.rdzv_endpoint.rpartition(":")
    if not (colon and host and port.isdecimal()):
        raise ConfigError(f"--rdzv-endpoint '{options.rdzv_endpoint}': it is HOST:PORT, as 10.0.0.1:29500")
    is_head = resolved(host) in addresses_here()
    return options.rdzv_endpoint, local_address(host, int(port)), is_head


@contextmanager
def _settings(count: int) -> Iterator[None]:
    """The environment that torchrun's agent and the ranks need, and its loggers silent."""
    kept = {
        name: os.environ.get(name) for name in (*ENVIRONMENT, "PYTHONPATH", "TORCHELASTIC_SIGNALS_TO_HANDLE")
    }
    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // count))
    os.environ.update(ENVIRONMENT | {"OMP_NUM_THREADS": threads, "PYTHONPATH": python_path()})
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for name, value in kept.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


@contextmanager
def _bounded(options: LaunchOptions, results: Callable[[], list[RankResult]]) -> Iterator[None]:
    """End this process where its ranks have ended and torchrun's agent does not: over a link that was cut,
    its calls to the other hosts do not return."""
    limit_s = options.comm_timeout + (options.join_timeout if options.max_restarts else 0.0)
    over = threading.Event()

    def watch() -> None:
        import psutil

        idle_since = time.monotonic()
        while not over.wait(0.5):
            ranks = [each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE]
            words = results()
            if ranks or not words:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > limit_s:
                print(f"error: {words[0].message}", file=sys.stderr, flush=True)
                os._exit(1)

    if hosts(options)[1] > 1:
        threading.Thread(target=watch, daemon=True, name="bound").start()
    try:
        yield
    finally:
        over.set()


@contextmanager
def _faults_named(config: RunConfig, logs: str) -> Iterator[list[BaseException]]:
    """What torchrun's launcher raises, as one error of ours in the list."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import (
        RendezvousConnectionError,
        RendezvousError,
        RendezvousTimeoutError,
    )

    from dpexp.distributed.signals import Terminated

    options = _options(config)
    faults: list[BaseException] = []
    try:
        yield faults
    except ChildFailedError as error:
        faults.append(LaunchError(_ended(error, logs)))
        faults[0].is_cause = error.get_first_failure()[1].exitcode < 0  # type: ignore[attr-defined]
    except SignalException as error:
        interrupted = error.sigval == signal.SIGINT
        faults.append(KeyboardInterrupt() if interrupted else Terminated(f"ended by {error.sigval.name}"))
    except RendezvousTimeoutError:
        faults.append(
            LaunchError(
                f"fewer than {options.nnodes} hosts met at {options.rdzv_endpoint} within "
                f"{options.join_timeout:g} s (--join-timeout): is the command running on every host, with "
                "the same --nnodes and --rdzv-endpoint?"
            )
        )
    except (RendezvousConnectionError, RendezvousError, OSError, RuntimeError) as error:
        faults.append(LaunchError(_not_met(options, error)))


def _not_met(options: LaunchOptions, error: Exception) -> str:
    words = f"{error} {error.__cause__ or ''}"
    if "EADDRINUSE" in words or "already in use" in words:
        return f"port of --rdzv-endpoint {options.rdzv_endpoint} is in use on this host: choose another"
    where = options.rdzv_endpoint or "this host"
    return f"the hosts cannot meet at {where}: {str(error).splitlines()[0]}"


def _ended(error: Any, logs: str) -> str:
    """Who ended first, and how: torchrun knows the process, its log the last words."""
    rank, failure = error.get_first_failure()
    host = os.uname().nodename
    how = (
        f"was killed by {signal.Signals(-failure.exitcode).name}"
        if failure.exitcode < 0
        else f"ended with code {failure.exitcode}"
    )
    return f"rank {rank} on host {host} (process {failure.pid}) {how}{_last_words(failure.local_rank, logs)}"


def _last_words(local_rank: int, logs: str) -> str:
    """The last line of a rank's stderr, where it was kept."""
    import glob

    for path in sorted(glob.glob(f"{logs}/**/{local_rank}/stderr.log", recursive=True), reverse=True):
        with open(path, errors="replace") as file:
            lines = file.read().strip().splitlines()
        if lines:
            return f": {lines[-1]}"
    return ""
