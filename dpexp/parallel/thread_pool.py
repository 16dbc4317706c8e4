"""ThreadPool: worker threads that live as long as the process, one a device, reused by every forward.

Starting a thread costs as much as a small layer's forward. A worker runs one task at a time. When a
device's worker is busy, because a replica contains a DataParallel itself or because a second thread calls
one, the pool starts another worker, so no task waits for a thread that waits for that task.

``concurrent.futures`` has no pool that keeps a replica on the same thread in every step, and costs more a
task. A forked child has none of its parent's threads and starts its own pool.
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
"""A device and how often it occurs before in the list: ``[cuda:0, cuda:0]`` has two slots."""


class Worker(threading.Thread):
    """A daemon thread that runs the tasks of one slot; between tasks it is in the slot's ``idle``."""

    def __init__(self, slot: Slot, idle: deque[Worker]) -> None:
        super().__init__(name=f"dpexp {label(slot[0])}", daemon=True)
        self._tasks: SimpleQueue[tuple[Task, SimpleQueue[None]]] = SimpleQueue()
        self._idle = idle
        self.start()

    def submit(self, task: Task, finished: SimpleQueue[None]) -> None:
        """Run the task soon, then put None into ``finished``. The task must not raise."""
        self._tasks.put((task, finished))

    def run(self) -> None:
        while True:
            task, finished = self._tasks.get()
            task()
            del task  # an idle worker keeps no module, batch or output alive
            self._idle.append(self)
            finished.put(None)


class ThreadPool:
    """The workers of one process."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._idle: dict[Slot, deque[Worker]] = {}

    def run(self, devices: Sequence[torch.device], tasks: Sequence[Task]) -> None:
        """Run each task in a worker of its device and wait until all have finished. They must not raise."""
        occurrences = Counter[torch.device]()
        finished: SimpleQueue[None] = SimpleQueue()
        for device, task in zip(devices, tasks, strict=True):
            self._worker((device, occurrences[device])).submit(task, finished)
            occurrences[device] += 1
        for _ in tasks:
            finished.get()

    def _worker(self, slot: Slot) -> Worker:
        """An idle worker of the slot, otherwise a new one."""
        idle = self._idle.setdefault(slot, deque())  # setdefault, append and pop are atomic
        try:
            return idle.pop()
        except IndexError:
            return Worker(slot, idle)


_pool: ThreadPool | None = None


def thread_pool() -> ThreadPool:
    """The pool of this process."""
    global _pool
    if _pool is None or _pool.process != os.getpid():
        _pool = ThreadPool()
    return _pool
