"""Ranks as forks of this process, which has imported what they need: no run costs an import."""

import contextlib
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1"}


def run(ranks: int, call: Callable[[], None], folder: Path, patience_s: float) -> bool:
    """Call a function in each of so many ranks, and wait; False if they took longer, and were killed.

    With none it is called in one process without ranks.
    What rank N prints is in ``printed-N`` of the folder.
    """
    world = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": free_port()}
    worlds = [world | {"RANK": rank, "LOCAL_RANK": rank} for rank in range(ranks)] or [{}]
    children = [_started(call, each, folder) for each in worlds]
    return _wait_for(children, patience_s)


def _started(call: Callable[[], None], world: dict[str, int], folder: Path) -> int:
    child = os.fork()
    if child:
        return child
    try:
        printed = os.open(folder / f"printed-{world.get('RANK', 0)}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        os.environ |= ENVIRONMENT | {name: str(value) for name, value in world.items()}
        call()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _wait_for(children: list[int], patience_s: float) -> bool:
    deadline, left = time.monotonic() + patience_s, set(children)
    while left and time.monotonic() < deadline:
        left = {child for child in left if not os.waitpid(child, os.WNOHANG)[0]}
        time.sleep(0.02)
    for child in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return not left


def free_port() -> int:
    """A port that no process of this machine listens at."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
