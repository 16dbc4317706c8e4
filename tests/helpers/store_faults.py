"""A store whose process dies at a chosen call."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dpexp.tracking.store.store import Store


class Death(BaseException):  # not an Exception, so that nothing catches it
    """The uploader process dies here."""


class DyingClient:
    """MLflow's own client, whose process dies at call number ``calls``, before or after it arrives."""

    def __init__(self, client: Any, calls: int, arrives: bool) -> None:
        self._client, self._calls, self._arrives = client, calls, arrives

    def __getattr__(self, name: str) -> Any:
        return self.dying(getattr(self._client, name), name)

    def dying(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._calls -= 1
            if self._calls >= 0:
                return method(*args, **kwargs)
            if self._arrives:
                method(*args, **kwargs)
            raise Death(name)

        return call


@contextmanager
def dying(store: Store, calls: int, arrives: bool) -> Iterator[None]:
    """The process dies at this call to MLflow's client, or of points to the SQLite file."""
    client: Any = store.client
    dying: Any = DyingClient(client, calls, arrives)
    store.client = dying
    store.log_points = dying.dying(store.log_points, "log_points")  # type: ignore[method-assign]
    try:
        yield
    finally:
        store.client = client
        del store.log_points  # type: ignore[method-assign]
