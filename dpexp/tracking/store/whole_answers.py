"""Whole answers: what a server answers is complete within a bound, or it is given up (see ``patience``).

The time limit of ``requests`` is for each read, so that an answer which drips a byte every two seconds is
never late. Its bound is that of all tries which MLflow's variables allow, and a second for each 100 kB that
are sent. A database has no limit at all, so that each call of MLflow's client has one.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from dpexp.tracking.store import patience
from dpexp.tracking.store.patience import answer_s, within
from dpexp.tracking.store.valid_answers import check_answer

if TYPE_CHECKING:
    from requests import PreparedRequest, Response
    from requests.adapters import HTTPAdapter

BYTES_A_SECOND = 100_000
CALLS = 3
"""A call to a database has the time of so many answers: it reads all points of a metric at once."""
_T = TypeVar("_T")


@functools.cache
def bound_answers() -> None:
    """Bound every answer that this process gets by ``requests`` from now on; MLflow uses no other way."""
    from requests import adapters
    from requests.exceptions import ReadTimeout
    from requests.utils import super_len

    send = adapters.HTTPAdapter.send

    @functools.wraps(send)
    def bounded(
        self: HTTPAdapter, request: PreparedRequest, stream: bool = False, **options: Any
    ) -> Response:
        def whole() -> Response:
            response = send(self, request, stream=stream, **options)
            if not stream:
                check_answer(response)  # which reads it
            return response

        try:
            return within(answer_s(), whole, super_len(request.body or b"") / BYTES_A_SECOND)
        except TimeoutError as error:
            raise ReadTimeout(str(error)) from None

    adapters.HTTPAdapter.send = bounded  # type: ignore[assignment,method-assign]


def from_database(request: Callable[[], _T]) -> _T:
    """What a call to a database server returns or raises. Raises TimeoutError where it is late."""
    return within(CALLS * answer_s(), request)


def from_file(request: Callable[[], _T]) -> _T:
    """What a call to an SQLite file returns or raises, which MLflow tries for 20 s where it is locked.

    Then nothing more is asked.
    """
    started = time.monotonic()
    try:
        return request()
    except Exception:
        if time.monotonic() - started >= answer_s():
            patience.end()
        raise


class BoundedClient:
    """MLflow's client, of whose calls each is made by ``bound``."""

    def __init__(self, client: object, bound: Callable[[Callable[[], Any]], Any]) -> None:
        self._client = client
        self._bound = bound

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        return lambda *given, **named: self._bound(functools.partial(method, *given, **named))
