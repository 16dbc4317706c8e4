"""Answers of what is not an MLflow server are named, with their address, and pass for nothing else."""

import json

import pytest
from requests import Response

from dpexp.tracking.errors import WrongAnswerError, short_message
from dpexp.tracking.store.valid_answers import check_answer

RUN = {"run": {"info": {"run_id": "1f"}, "data": {}}}
NOT_FOUND = {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no"}


def response(call: str, status: int, content: bytes, path: str = "/api/2.0/mlflow/") -> Response:
    found = Response()
    found.url, found.status_code = f"http://me:hunter22@there:5000{path}{call}?run_id=1", status
    found._content = content
    return found


@pytest.mark.parametrize(
    ("call", "status", "content"),
    [
        *(
            ("runs/get", 200, content)
            for content in (b"{}", b"[]", b"null", b"<html>", b'{"run": {"in', b"\xff")
        ),
        *(("runs/create", 200, json.dumps(each).encode()) for each in ({"run": 1}, {"run": {"info": {}}})),
        *(("experiments/create", 200, content) for content in (b"{}", b'{"experiment_id": ""}')),
        *(("runs/search", 200, content) for content in (b"<html>", b'{"runs": "x"}')),
        *(("runs/get", status, b"<html>") for status in (400, 403, 404, 500, 502)),
        ("runs/log-batch", 404, b"{}"),
    ],
)
def test_an_answer_of_something_else_is_named_with_its_address(
    call: str, status: int, content: bytes
) -> None:
    with pytest.raises(WrongAnswerError) as raised:
        check_answer(response(call, status, content))
    message = short_message(raised.value)
    assert f"there:5000/api/2.0/mlflow/{call} answered {status} " in message
    assert "check MLFLOW_TRACKING_URI" in message
    assert ("MLFLOW_TRACKING_USERNAME" in message) is (status in (401, 403))
    assert ("try again later" in message) is (status == 502)
    assert "hunter22" not in message


@pytest.mark.parametrize(
    ("call", "status", "content"),
    [
        ("runs/get", 200, json.dumps(RUN).encode()),
        *((call, 404, json.dumps(NOT_FOUND).encode()) for call in ("runs/get", "experiments/get-by-name")),
        *((call, 200, b"{}") for call in ("runs/search", "runs/log-batch", "runs/set-tag")),
        ("runs/log-batch", 200, b""),
    ],
)
def test_what_a_server_answers_passes(call: str, status: int, content: bytes) -> None:
    check_answer(response(call, status, content))


def test_only_answers_of_the_tracking_api_are_judged() -> None:
    check_answer(response("health", 200, b"OK", path="/"))
    check_answer(response("traces", 404, b"<html>", path="/api/3.0/mlflow/"))
