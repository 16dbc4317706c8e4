"""Stop: SIGTERM, answered at once or, between steps, by every rank at the same one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Terminated(BaseException):
    """SIGTERM came: the run ends as killed, with everything up to here recorded."""


class Stop:
    """What SIGTERM does to a run: it raises Terminated, or is ``requested`` for while it is deferred back."""

    def __init__(self) -> None:
        self.requested = False
        self._deferred = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Answer SIGTERM while inside; only the main thread can arrange that."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGTERM, self._answer)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """SIGTERM is only noted while inside: the caller looks at ``requested`` where it can stop."""
        before, self._deferred = self._deferred, True
        try:
            yield
        finally:
            self._deferred = before

    def _answer(self, number: int, frame: object) -> None:
        self.requested = True
        if not self._deferred:
            self.terminate()

    def terminate(self) -> None:
        """Raises Terminated."""
        raise Terminated(f"ended by {signal.SIGTERM.name}")
