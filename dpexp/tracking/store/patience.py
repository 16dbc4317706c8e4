"""Patience: how long a command waits for its store, for one answer and in all.

::

    one answer       ``answer_s`` (20 s), of a database three times that; else nothing more is asked
    all of them      a twentieth of it for each, and ``ANSWERS`` beyond: a server may be in time each time

The limits that libraries have are for each read, or there are none. So a request is made in a thread, and a
late one is left alone there: it ends with the process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

ANSWERS, GRANTED = 3, 0.05
"""What a command waits in all beyond the time that it grants to each answer, and that, in answers."""
_T = TypeVar("_T")


class _Patience:
    """That of this process, which is one command."""

    spent_s = 0.0
    is_over = False

    def spend(self, seconds: float) -> None:
        """Count what an answer took beyond what it is granted."""
        self.spent_s = max(0.0, self.spent_s + seconds - GRANTED * answer_s())
        self.is_over |= self.spent_s > ANSWERS * answer_s()


_patience = _Patience()


def is_over() -> bool:
    """Whether the store was late, or too slow in all: it is asked nothing more."""
    return _patience.is_over


def end() -> None:
    """The store was late: ask nothing more."""
    _patience.is_over = True


def renew() -> None:
    """Wait again as long: a process that lives beside a run tries again later."""
    _patience.spent_s, _patience.is_over = 0.0, False


def answer_s() -> float:
    """The seconds in which an answer must be complete: MLflow's time limit, for each of its tries."""
    import mlflow.environment_variables

    variables: Any = mlflow.environment_variables
    tries = variables.MLFLOW_HTTP_REQUEST_MAX_RETRIES.get() + 1
    return float(tries * variables.MLFLOW_HTTP_REQUEST_TIMEOUT.get())


def within(seconds: float, request: Callable[[], _T], more_s: float = 0.0) -> _T:
    """What the request returns or raises. Raises TimeoutError where it takes longer, or patience is over.

    ``more_s`` is granted to what is sent, in all of both.
    """
    if _patience.is_over:
        raise TimeoutError("no whole answer within the time that a command waits for its store")
    answer: Future[_T] = Future()

    def work() -> None:
        try:
            answer.set_result(request())
        except BaseException as error:
            answer.set_exception(error)

    started = time.monotonic()
    try:
        threading.Thread(target=work, daemon=True, name="request").start()
    except RuntimeError:  # the interpreter ends, and starts none
        return request()
    try:
        return answer.result(seconds + more_s)
    except TimeoutError:
        if answer.done():
            raise
        end()
        raise TimeoutError(f"no whole answer within {seconds + more_s:g} s") from None
    finally:
        _patience.spend(time.monotonic() - started - more_s)
