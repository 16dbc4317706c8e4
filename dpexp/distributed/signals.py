"""Signals: SIGINT (Ctrl-C) and SIGTERM end a run once; those that follow do not disturb its end.

running    the first signal raises KeyboardInterrupt or Terminated
ending     every signal is only counted
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dpexp.config.errors import Terminated

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class SignalHandler:
    """The signals of one run: ``received`` counts them; ``requested`` is True from the first one on."""

    def __init__(self) -> None:
        self.received = 0
        self._first: int | None = None
        self._is_held = False

    @property
    def requested(self) -> bool:
        """Whether a signal asks for the end: the caller reads it where the run can stop."""
        return self.received > 0

    @contextmanager
    def installed(self, *, is_last: bool = False) -> Iterator[None]:
        """Handle signals inside the block; outside the main thread, where Python cannot, do nothing.

        After a signal has ended a run that ``is_last`` in its process, later ones have no effect.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = [signal.signal(number, self._handle) for number in SIGNALS]
        try:
            yield
        finally:
            if not (is_last and self.requested):
                for number, handler in zip(SIGNALS, before, strict=True):
                    signal.signal(number, handler)

    def hold(self) -> None:
        """No signal raises from now on."""
        self._is_held = True

    def release(self) -> None:
        """Signals raise again; so does one that was received meanwhile."""
        self._is_held = False
        if self.requested:
            self.terminate()

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Signals raise inside the block, also one that came before it; after the block none does."""
        self.release()
        try:
            yield
        finally:
            self.hold()

    def _handle(self, number: int, frame: object) -> None:
        self.received += 1
        self._first = self._first or number
        if self.received == 1 and not self._is_held:
            self.terminate()

    def terminate(self) -> None:
        """Raises KeyboardInterrupt if the first signal was SIGINT, else Terminated."""
        if self._first == signal.SIGINT:
            raise KeyboardInterrupt
        raise Terminated(f"ended by {signal.SIGTERM.name}")
