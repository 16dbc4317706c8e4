"""Redaction: credentials are removed from what is written to a journal or a log."""

import json
import os
import re

HIDDEN = "***"
_SECRET_NAME = re.compile(
    r"TOKEN|PASSWORD|PASSWD|SECRET|CREDENTIAL|API_?KEY|ACCESS_?KEY|AUTH$", re.IGNORECASE
)
_IN_URL = re.compile(r"(?<=://)[^\s\"'<>/]+(?=@)")
_IN_QUERY = re.compile(
    r"([?&;](?:[\w-]*(?:token|password|passwd|secret|api_?key|sig|signature))=)[^&\s\"'<>]+", re.IGNORECASE
)


def redact(text: str) -> str:
    """The text without the credentials in its URLs and without the values of secret variables.

    An environment variable is secret if its name matches ``*TOKEN*``, ``*PASSWORD*``, ….
    """
    for secret in secrets():
        text = text.replace(secret, HIDDEN)
    if "://" in text:
        text = _IN_URL.sub(HIDDEN, text)
        text = _IN_QUERY.sub(rf"\1{HIDDEN}", text)
    return text


def secrets() -> list[str]:
    """The values of secret variables, plain and escaped as in JSON, longest first.

    Values under six characters stay: they occur in ordinary words.
    """
    values = {value for name, value in os.environ.items() if _SECRET_NAME.search(name) and len(value) >= 6}
    return sorted(values | {json.dumps(value)[1:-1] for value in values}, key=len, reverse=True)
