"""Whole answers: a server's answer is complete within a bound, or it is given up.

The time limit of ``requests`` is for each read, so that an answer which drips a byte every two seconds is
never late. So each request is made in a thread, and a late one is left alone there: it ends with the process.
The bound is that of all tries which MLflow's variables allow, and a second for each 100 kB that are sent.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from requests import PreparedRequest, Response
    from requests.adapters import HTTPAdapter

BYTES_A_SECOND = 100_000
_T = TypeVar("_T")
_late = [0]


def late_answers() -> int:
    """How many answers this process has given up."""
    return _late[0]


def answer_s() -> float:
    """The seconds in which an answer must be complete: MLflow's time limit, for each of its tries."""
    import mlflow.environment_variables

    variables: Any = mlflow.environment_variables
    tries = variables.MLFLOW_HTTP_REQUEST_MAX_RETRIES.get() + 1
    return float(tries * variables.MLFLOW_HTTP_REQUEST_TIMEOUT.get())


def within(seconds: float, request: Callable[[], _T]) -> _T:
    """What the request returns or raises. Raises ReadTimeout of ``requests`` where it takes longer."""
    from requests.exceptions import ReadTimeout

    answer: Future[_T] = Future()

    def work() -> None:
        try:
            answer.set_result(request())
        except BaseException as error:
            answer.set_exception(error)

    try:
        threading.Thread(target=work, daemon=True, name="request").start()
    except RuntimeError:  # the interpreter ends, and starts none
        return request()
    try:
        return answer.result(seconds)
    except TimeoutError:
        if answer.done():
            raise
        _late[0] += 1
        raise ReadTimeout(f"Read timed out: no whole answer within {seconds:g} s") from None


@functools.cache
def bound_answers() -> None:
    """Bound every answer that this process gets by ``requests`` from now on; MLflow uses no other way."""
    from requests import adapters
    from requests.utils import super_len

    send = adapters.HTTPAdapter.send

    @functools.wraps(send)
    def bounded(
        self: HTTPAdapter, request: PreparedRequest, stream: bool = False, **options: Any
    ) -> Response:
        def whole() -> Response:
            response = send(self, request, stream=stream, **options)
            if not stream:
                response.content  # noqa: B018 - it is read
            return response

        return within(answer_s() + super_len(request.body or b"") / BYTES_A_SECOND, whole)

    adapters.HTTPAdapter.send = bounded  # type: ignore[assignment,method-assign]
