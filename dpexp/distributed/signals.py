"""Signals: SIGINT (Ctrl-C) and SIGTERM end a run once; those that follow do not disturb its end.

running    the first signal raises KeyboardInterrupt or Terminated
ending     every signal is only counted
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from dpexp.config.errors import Terminated, describe
from dpexp.config.printable import printable

__all__ = ["SignalHandler", "Terminated"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class SignalHandler:
    """The signals of one run: ``received`` counts them; ``requested`` is True from the first one on."""

    def __init__(self) -> None:
        self.received = 0
        self._first: int | None = None
        self._process = os.getpid()
        self._is_held = self._has_raised = False

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

    def error_of(self, work: Callable[[], None]) -> BaseException | None:
        """Do the work, until no signal can raise. Returns what ended it early, which may be anything.

        A process that the work forked, and that comes back here, ends: the run belongs to its parent.
        """
        try:
            try:
                self.release()
                work()
                self.hold()
            except BaseException as raised:
                self.hold()
                if os.getpid() != self._process:
                    _leave_forked_child(raised)
                return raised
        except BaseException as raised:  # a signal before ``hold``
            self.hold()
            return raised
        return None

    def _handle(self, number: int, frame: object) -> None:
        if os.getpid() != self._process:
            _by_default(number)
            return
        self.received += 1
        self._first = self._first or number
        if self._is_held:
            return
        # The end may have begun just now. If user code swallowed the exception, a third signal raises.
        self._has_raised = not self._has_raised
        if self._has_raised:
            self.terminate()

    def terminate(self) -> None:
        """Raises KeyboardInterrupt if the first signal was SIGINT, else Terminated."""
        if self._first == signal.SIGINT:
            raise KeyboardInterrupt
        raise Terminated(f"ended by {signal.SIGTERM.name}")


def _by_default(number: int) -> None:
    """What a signal does without a handler, in a process that was forked from that of the run."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _leave_forked_child(error: BaseException) -> NoReturn:
    if isinstance(error, SystemExit):
        os._exit(error.code if isinstance(error.code, int) else int(error.code is not None))
    line = f"error: in a process that was forked in the run: {describe(error)}"
    print(printable(line), file=sys.stderr, flush=True)
    os._exit(1)
