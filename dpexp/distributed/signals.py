"""SIGTERM: it ends a run at once or, between steps, every rank at the same step."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Terminated(BaseException):
    """The process received SIGTERM: the run ends with status killed, with a complete journal."""


class SigtermHandler:
    """Raises Terminated at SIGTERM; inside ``deferred()`` it only sets ``requested``."""

    def __init__(self) -> None:
        self.requested = False
        self._is_deferred = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle SIGTERM inside the block; outside the main thread, where Python cannot, do nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGTERM, self._handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside the block SIGTERM does not raise: the caller reads ``requested`` where it can stop."""
        before, self._is_deferred = self._is_deferred, True
        try:
            yield
        finally:
            self._is_deferred = before

    def _handle(self, number: int, frame: object) -> None:
        self.requested = True
        if not self._is_deferred:
            self.terminate()

    def terminate(self) -> None:
        """Raises Terminated."""
        raise Terminated(f"ended by {signal.SIGTERM.name}")
