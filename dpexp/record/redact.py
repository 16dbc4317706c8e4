"""Redaction: credentials are removed from what is written to a journal or a log, or shown.

A credential is the value of an environment variable with a secret's name (``HF_TOKEN``, ``DB_PASSWORD``), a
login in a URL, or what an option, a query or an argument of a factory calls one (``--api-key=…``,
``?token=…``, ``model.py:make:password=…``). The value of a variable is searched for if it has ``SHORTEST``
characters: a shorter one occurs in ordinary texts.
"""

import functools
import json
import os
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus, unquote

HIDDEN = "***"
SHORTEST = 6
_SECRET_NAME = re.compile(
    r"((TOKEN|PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIAL)S?|(^|_|API|ACCESS)KEYS?|_PWD|_PASS)(?![A-Z])|AUTH$",
    re.IGNORECASE,
)
# A password may hold / and @, as SQLAlchemy allows: it ends at the last @ of its word.
_LOGIN = re.compile(r"(?<=://)(?:[^\s:/?#]*:\S*|[^\s/?#]+)(?=@)")
_WORD = r"(?i:[\w-]*(?:token|password|passwd|pwd|secret|key|sig|signature))"
_ASSIGNED = re.compile(
    rf"((?:[?&;]|--){_WORD}=|[:,]\w*(?:password|secret|api_?key)=|\b[A-Z0-9_]*(?:TOKEN|PASSWORD|SECRET|KEY)=)"
    r"[^&\s\"'<>]+"
)
_OPTION = re.compile(rf"--?{_WORD}")
_WITHOUT = ("shapes", "device_map", "run_id", "started", "ended", "status", "strategy", "execution")
"""The keys of a Record whose texts are names of modules and devices, or of dpexp's own choice."""


def redact(text: str) -> str:
    """The text with ``***`` for every credential in it."""
    return _redactor()(text)


def redact_values(values: dict[str, Any]) -> dict[str, Any]:
    """What a journal sets, by key of the Record, without credentials; keys, numbers and a status stay."""
    clean = functools.cache(_redactor)  # made for the first text: most lines have only numbers
    return {
        key: each if key in _WITHOUT else _walked(each, lambda text: clean()(text))
        for key, each in values.items()
    }


def _walked(value: Any, clean: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {key: _walked(each, clean) for key, each in value.items()}
    if isinstance(value, list | tuple):
        options = [isinstance(each, str) and _OPTION.fullmatch(each) is not None for each in value]
        return [
            HIDDEN if is_secret and isinstance(each, str) else _walked(each, clean)
            for is_secret, each in zip([False, *options], value, strict=False)
        ]
    return value


def _redactor() -> Callable[[str], str]:
    """The function that redacts a text, for the variables that are set now."""
    known = sorted({form for secret in _secrets() for form in _forms(secret)}, key=len, reverse=True)
    secrets = re.compile("|".join(map(re.escape, known)) or r"(?!)")

    def clean(text: str) -> str:
        found = secrets.sub(HIDDEN, text)
        found = _LOGIN.sub(HIDDEN, found) if "://" in found else found
        return _ASSIGNED.sub(rf"\1{HIDDEN}", found) if "=" in found else found

    return clean


def _secrets() -> Iterator[str]:
    """The values of secret variables, and the passwords and tokens in the URLs of all variables."""
    for name, value in os.environ.items():
        found = [value, value.strip()] if _SECRET_NAME.search(name) else []
        for match in _LOGIN.finditer(value):
            user, colon, password = match[0].partition(":")
            if colon:
                found += [match[0], password, unquote(password)]
            elif value.startswith("http"):
                found.append(user)
        yield from (secret for secret in found if len(secret.strip()) >= SHORTEST)


def _forms(secret: str) -> Iterator[str]:
    """The secret as it may appear: plain, escaped as in JSON or Python, or in a URL."""
    raw = os.fsencode(secret)
    yield from (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1])
    yield from (quote(raw), quote(raw, safe=""), quote_plus(raw))
