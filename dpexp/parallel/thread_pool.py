"""Workers: threads kept for the life of the process, one a device, reused by every forward.

Starting a thread costs about as much as a small layer's forward, so that the threads stay. A worker
does one task at a time. A task that needs workers itself (a DataParallel inside of a replica)
or a second caller at the same time finds the device's worker busy and gets a further one, so that
nobody waits for a thread that waits for him. A forked child has none of its parent's threads and starts
its own.
"""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue

import torch

from dpexp.devices import label

Task = Callable[[], None]
Slot = tuple[torch.device, int]
"""A device and how often it stood earlier in the list: ``[cuda:0, cuda:0]`` has two seats."""


class Latch:
    """Opens when ``count`` tasks have arrived."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._lock = threading.Lock()
        self._gate = threading.Lock()
        self._gate.acquire()

    def arrive(self) -> None:
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._gate.release()

    def wait(self) -> None:
        self._gate.acquire()


class Worker:
    """A daemon thread and its inbox."""

    def __init__(self, seat: Slot, idle: deque[Worker]) -> None:
        self._inbox: SimpleQueue[tuple[Task, Latch]] = SimpleQueue()
        self._idle = idle
        name = f"dpexp {label(seat[0])}"
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def give(self, task: Task, latch: Latch) -> None:
        """Run the task soon. It may not raise; the latch is told when it is done."""
        self._inbox.put((task, latch))

    def _serve(self) -> None:
        _thread.is_worker = True
        while True:
            task, latch = self._inbox.get()
            task()
            del task  # an idle worker keeps no module, batch or output alive
            self._idle.append(self)
            latch.arrive()


class ThreadPool:
    """The idle workers of one process, by seat."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._idle: dict[Slot, deque[Worker]] = {}

    def worker(self, seat: Slot) -> Worker:
        """An idle worker of the seat, else a new one."""
        idle = self._idle.setdefault(seat, deque())  # setdefault, append and pop are atomic
        try:
            return idle.pop()
        except IndexError:
            return Worker(seat, idle)


_pool: ThreadPool | None = None
_thread = threading.local()


def is_worker() -> bool:
    """Whether this thread is a worker, in the middle of somebody's task."""
    return getattr(_thread, "is_worker", False)


def thread_pool() -> ThreadPool:
    """The crew of this process; a forked child gets a new one."""
    global _pool
    if _pool is None or _pool.process != os.getpid():
        _pool = ThreadPool()
    return _pool


def run_all(devices: Sequence[torch.device], tasks: Sequence[Task]) -> None:
    """Run each task in a worker of its device and wait until all are done. Tasks may not raise."""
    hands, taken = thread_pool(), Counter[torch.device]()
    latch = Latch(len(tasks))
    for device, task in zip(devices, tasks, strict=True):
        hands.worker((device, taken[device])).give(task, latch)
        taken[device] += 1
    latch.wait()
