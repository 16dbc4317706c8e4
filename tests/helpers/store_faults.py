"""An MLflow client whose process dies at a chosen call."""

from typing import Any

from mlflow.tracking import MlflowClient


class Death(BaseException):  # not an Exception, so that nothing catches it
    """The uploader process dies here."""


class DyingClient:
    """MLflow's own client, whose process dies at call number ``calls``, before or after it arrives."""

    def __init__(self, client: MlflowClient, calls: int, arrives: bool) -> None:
        self._client, self._calls, self._arrives = client, calls, arrives

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._calls -= 1
            if self._calls >= 0:
                return method(*args, **kwargs)
            if self._arrives:
                method(*args, **kwargs)
            raise Death(name)

        return call
