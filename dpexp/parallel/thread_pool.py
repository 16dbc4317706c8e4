"""ThreadPool: worker threads that live as long as the process, reused by every forward.

Each accelerator has a worker of its own. The replicas on the CPU wait in one queue for as many threads as
there are cores, since more would only share them. One of them is the caller. It is the only one where all
replicas together, at the pace of the first one of the call before, take less than ``SMALL_S``::

    caller     replica 0 ─┬─ replica 2 ─┬─ replica 3 ──
    worker     replica 1 ─┴─────────────┴─ replica 4 ──      replicas 5, 6, 7 are queued

A replica may wait for another one (a barrier of replicas, batch norm that averages over threads). So while
replicas are queued and none begins for a while, a watchdog starts one more worker (watchdog.py): such a
forward loses time and does not hang. A replica that contains a DataParallel itself, or a second thread that
calls one, gets other workers, so no task waits for a thread that waits for that task.

``concurrent.futures`` costs more a task. A forked child has none of its parent's threads and starts its own
pool.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from queue import SimpleQueue

import torch

from dpexp.config.process import cores
from dpexp.devices import HOST, label
from dpexp.parallel.watchdog import EnterState, QueuedTasks, Task, Watchdog

Slot = tuple[torch.device, int]
"""A device and how often it occurs before in the list: ``[cuda:0, cuda:0]`` has two slots."""
SMALL_S = 5e-4


class Worker(threading.Thread):
    """A daemon thread of one slot. It runs the tasks of a call until none is queued, then is ``idle``."""

    def __init__(self, slot: Slot, idle: deque[Worker]) -> None:
        super().__init__(name=f"dpexp {label(slot[0])}", daemon=True)
        self._calls: SimpleQueue[QueuedTasks] = SimpleQueue()
        self._idle = idle
        self.start()

    def submit(self, call: QueuedTasks) -> None:
        """Soon run the queued tasks, with a None in ``finished`` for each. They must not raise."""
        self._calls.put(call)

    def run(self) -> None:
        while True:
            call = self._calls.get()
            done = 0
            task = call.take()
            if task is not None:  # where others took all, the call may have returned
                with call.state():
                    while task is not None:
                        task()
                        done += 1
                        task = call.take()
            finished = call.finished
            del call  # an idle worker keeps no module, batch or output alive
            self._idle.append(self)
            for _ in range(done):
                finished.put(None)


class ThreadPool:
    """The workers of one process."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._cores = cores()
        self._idle: dict[Slot, deque[Worker]] = {}
        self._watchdog = Watchdog(self._add_worker)
        self._was_small = False

    def run(
        self,
        devices: Sequence[torch.device],
        tasks: Sequence[Task],
        state: EnterState,
        *,
        one_by_one: bool = False,
    ) -> None:
        """Run each task, in a worker of its device or here, until all have finished. They must not raise.

        ``one_by_one`` runs those on the CPU here, in their order, unless one waits for another.
        """
        occurrences = Counter[torch.device]()
        on_cpu = QueuedTasks(state, one_by_one=one_by_one)
        for device, task in zip(devices, tasks, strict=True):
            if device.type == "cpu":
                on_cpu.queued.append(task)
            else:
                call = QueuedTasks(state, on_cpu.finished)
                call.queued.append(task)
                self._worker((device, occurrences[device])).submit(call)
                occurrences[device] += 1
        done = self._run_here(on_cpu) if on_cpu.queued else 0
        for _ in range(len(tasks) - done):
            on_cpu.finished.get()

    def _run_here(self, call: QueuedTasks) -> int:
        """Run queued tasks here, and in other threads unless they are small. Returns how many here."""
        count = len(call.queued)
        helpers = 0 if self._was_small or call.one_by_one else min(self._cores, count) - 1
        for _ in range(helpers):
            self._add_worker(call)
        self._watchdog.add(call)
        try:
            began, done = time.perf_counter(), 0
            while (task := call.take()) is not None:
                task()
                done += 1
                if done == 1 and not call.one_by_one:
                    self._was_small = (time.perf_counter() - began) * count < SMALL_S
            return done
        finally:
            self._watchdog.remove(call)

    def _add_worker(self, call: QueuedTasks) -> None:
        self._worker((HOST, 0)).submit(call)

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
