"""Watchdog: more workers for the queued tasks of a call that stands still."""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from queue import SimpleQueue

Task = Callable[[], None]
EnterState = Callable[[], AbstractContextManager[object]]
"""Enters in a worker what holds for all tasks of a call."""
PATIENCE_S = 0.1
ONE_BY_ONE_FACTOR = 50
"""How many times as patient the watchdog is with tasks that should run one by one."""


class QueuedTasks:
    """The tasks that one call has queued, and what its workers need; ``one_by_one``: one at a time."""

    number = 0

    def __init__(
        self, state: EnterState, finished: SimpleQueue[None] | None = None, *, one_by_one: bool = False
    ) -> None:
        self.queued: deque[Task] = deque()
        self.state, self.one_by_one = state, one_by_one
        self.finished = SimpleQueue[None]() if finished is None else finished

    def take(self) -> Task | None:
        """The next task, no longer queued; None if there is none."""
        try:
            return self.queued.popleft()
        except IndexError:
            return None


class Watchdog:
    """A daemon thread that adds a worker to each call that begins no queued task for ``PATIENCE_S``.

    A call whose tasks run one by one gets one after ``ONE_BY_ONE_FACTOR`` times as long. While there are
    calls it looks ten times a second, otherwise it sleeps.
    """

    def __init__(self, add_worker: Callable[[QueuedTasks], None]) -> None:
        self._add_worker = add_worker
        self._calls: list[QueuedTasks] = []
        self._count = 0
        self._is_awake = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, call: QueuedTasks) -> None:
        """Watch the call until ``remove``."""
        self._count += 1
        call.number = self._count
        self._calls.append(call)
        if not self._is_awake.is_set():
            self._is_awake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dpexp watchdog", daemon=True)
            self._thread.start()

    def remove(self, call: QueuedTasks) -> None:
        self._calls.remove(call)

    def _run(self) -> None:
        queued: dict[int, tuple[int, int]] = {}
        while True:
            self._is_awake.wait()
            count = self._count
            time.sleep(PATIENCE_S)
            queued = self._help(queued)
            if not self._calls and self._count == count:
                self._is_awake.clear()
                if self._calls:  # added after the look and before the clear
                    self._is_awake.set()

    def _help(self, before: dict[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
        """Add a worker to each call that stands still. Returns (queued, times unchanged) by call."""
        queued = {}
        for call in tuple(self._calls):
            count, unchanged = len(call.queued), 0
            if before.get(call.number, (0, 0))[0] == count > 0:
                unchanged = before[call.number][1] + 1
            if unchanged >= (ONE_BY_ONE_FACTOR if call.one_by_one else 1):
                self._add_worker(call)
                unchanged = 0
            queued[call.number] = count, unchanged
        return queued
