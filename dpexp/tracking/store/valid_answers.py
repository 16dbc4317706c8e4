"""Valid answers: what an MLflow server can answer to a request, and what comes from something else.

A proxy, a login page or another program at its address also answers 200, or 404: that must neither pass for
a run that was made nor for one that was deleted. Only what such a request must return is looked at.
"""

from __future__ import annotations

import json
from http.client import responses
from typing import TYPE_CHECKING, Any

from dpexp.tracking.errors import WrongAnswerError

if TYPE_CHECKING:
    from requests import Response

API = "/api/2.0/mlflow/"
_MUST_HAVE = {
    "experiments/create": ("experiment_id",),
    "experiments/get": ("experiment", "experiment_id"),
    "experiments/get-by-name": ("experiment", "experiment_id"),
    "runs/create": ("run", "info", "run_id"),
    "runs/get": ("run", "info", "run_id"),
    "runs/update": ("run_info", "run_id"),
}
"""Where the answer to a request has the name of what it is about."""
_LISTS = ("experiments", "files", "metrics", "runs")
_LOGIN = "check the login (MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN); "
_LATER = "the server may be starting, or stopped: try again later; "
_ADVICE = {401: _LOGIN, 403: _LOGIN, 502: _LATER, 503: _LATER, 504: _LATER}
_SHOWN = 80
"""Characters of an answer that an error shows."""


def check_answer(response: Response) -> None:
    """Raises WrongAnswerError for an answer to MLflow's API that no server of MLflow gives."""
    url = response.url.partition("?")[0]
    _, found, call = url.partition(API)
    body = response.content
    if not found or response.status_code == 204 or response.is_redirect:
        return
    content = _object(body)
    if response.status_code == 200 and content is not None:
        is_valid = _is_valid(call, content)
    else:  # of a proxy: MLflow says in JSON what is wrong
        is_valid = content is not None and "error_code" in content
    if not is_valid:
        advice = _ADVICE.get(response.status_code, "")
        raise WrongAnswerError(
            f"{url} answered {_shown(response)}, which is not the answer of an MLflow server: {advice}check "
            "MLFLOW_TRACKING_URI, and what lies between, such as a proxy or a login page"
        )


def _object(content: bytes) -> dict[str, Any] | None:
    """The JSON object; None for anything else. MLflow takes an empty answer for an empty object."""
    try:
        found = json.loads(content or b"{}")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _is_valid(call: str, content: dict[str, Any]) -> bool:
    if not all(isinstance(content.get(key, []), list) for key in _LISTS):
        return False
    value: Any = content
    for key in _MUST_HAVE.get(call, ()):
        value = value.get(key) if isinstance(value, dict) else None
    return call not in _MUST_HAVE or (isinstance(value, str) and value != "")


def _shown(response: Response) -> str:
    """``403 Forbidden with '<html>…'``, on one line."""
    text = " ".join(response.content.decode(errors="replace").split())
    short = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    status = f"{response.status_code} {responses.get(response.status_code, '')}".strip()
    return f"{status} with {short!r}"
