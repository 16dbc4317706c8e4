"""Redaction: credentials are removed from what is written to a journal or a log, or shown.

A secret is the value of an environment variable with a secret's name, or a login in a URL. Redaction works on
texts before they become JSON: numbers, keys and the values that dpexp itself sets are never changed, also
where a secret happens to be equal to one (``DB_PASSWORD=finished``, ``DB_TOKEN=835788``).
"""

import functools
import json
import os
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus, unquote

HIDDEN = "***"
SHORT = 6
"""A shorter secret is hidden only where it is a word of its own: its letters occur in ordinary words."""
_SECRET_NAME = re.compile(
    r"((TOKEN|PASSWORD|PASSWD|PASSPHRASE|SECRET|CREDENTIAL)S?|(^|_|API|ACCESS)KEYS?|_PWD|_PASS)(?![A-Z])|AUTH$",
    re.IGNORECASE,
)
# A host that is not a user name, its port, and the rest of a word without another URL.
_HOST = r"(?:localhost|\[[\da-fA-F:]+\]|[\w-]+(?:\.[\w-]+)+):\d{1,5}(?:[/?#\"'),;][^\s@:]*)?\s"
# A password may hold any character: what looks like a login is one up to the last @ of its line.
_IN_URL = re.compile(rf"(?<=://)(?:(?!{_HOST})[^\s/:?#]*:[^\n]+|[^\s\"'<>/]+)(?=@)")
_IN_QUERY = re.compile(
    r"([?&;](?:[\w-]*(?:token|password|passwd|pwd|secret|key|sig|signature))=)[^&\s\"'<>]+", re.IGNORECASE
)
_TEXTS = frozenset(
    {
        "name",
        "experiment",
        "error",
        "config",
        "environment",
        "data",
        "verification",
        "files",
        "damage",
        "work",
    }
)
"""The fields of a Record with texts from outside; the others hold only what dpexp itself sets."""
_OF_MACHINE = {"python", "torch", "mlflow", "os", "host", "cpu", "cpu_count", "git", "packages", "lock"}
_OF_MACHINE |= {"cuda", "cpu_capability", "threads", "accelerators"}
OWN_STEPS = ("first_steps", "last_step")
_WRITTEN_BY_DPEXP = {
    "error.type",
    "data.sha256",
    "files.sha256",
    "work.not_counted",
    *(f"verification.{key}" for key in ("dtype", "worst.kind", "rounding")),
    *(f"verification.{row}.{key}" for row in OWN_STEPS for key in ("dtype", "worst.kind")),
    *(f"environment.{key}" for key in _OF_MACHINE),
}
"""The (dotted) keys of a Record whose values dpexp itself sets."""


class Verbatim(str):
    """A text that dpexp itself sets, in a place where others come from outside: it is never redacted."""

    __slots__ = ()


def redact(text: str) -> str:
    """The text without logins in URLs and without the values of secret variables.

    An environment variable is secret if its name is like ``*_TOKEN``, ``*_PASSWORD``, ``*_KEY``, ….
    """
    return _redactor()(text)


def redact_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry of a journal with its texts redacted."""
    redactor = functools.cache(_redactor)  # made for the first text: most lines have only samples
    operations = {"set": entry.get("set"), "extend": entry.get("extend")}
    return entry | {
        name: {key: _redacted(value, key, lambda text: redactor()(text)) for key, value in values.items()}
        for name, values in operations.items()
        if values
    }


def _redacted(value: Any, path: str, clean: Callable[[str], str]) -> Any:
    """The value at a path of the Record, its texts redacted; a list's items have the path of the list."""
    if isinstance(value, Verbatim) or path in _WRITTEN_BY_DPEXP or path.partition(".")[0] not in _TEXTS:
        return value
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {key: _redacted(item, f"{path}.{key}", clean) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(item, path, clean) for item in value]
    return value


def _redactor() -> Callable[[str], str]:
    """The function that redacts a text, for the variables that are set now."""
    known = [re.compile(_pattern(secret)) for secret in set(_secrets())]

    def clean(text: str) -> str:
        # All are searched in the text as it was: what one hides would change what the next finds.
        secrets = [match.span() for pattern in known for match in pattern.finditer(text)]
        if "://" in text:
            secrets += _logins_in_urls(text)
            secrets += [(match.end(1), match.end()) for match in _IN_QUERY.finditer(text)]
        return _without(secrets, text)

    return clean


def _logins_in_urls(text: str) -> Iterator[tuple[int, int]]:
    """The (start, end) of each login. Each line is searched up to its last @: each URL is read once."""
    start = 0
    for line in text.split("\n"):
        for match in _IN_URL.finditer(text, start, start + line.rfind("@") + 1):
            yield match.span()
        start += len(line) + 1


def _without(spans: list[tuple[int, int]], text: str) -> str:
    """The text with ``***`` for the characters of the spans, which may overlap."""
    kept: list[str] = []
    end = 0
    for start, stop in sorted(spans):
        if start > end or not kept:
            kept.append(text[end:start])
        end = max(end, stop)
    return HIDDEN.join([*kept, text[end:]])


def _pattern(secret: str) -> str:
    """Matches the secret; a short one only where it is a word of its own."""
    pattern = re.escape(secret)
    if len(secret) >= SHORT:
        return pattern
    beside = r"[^\W_]" if any(map(str.isalnum, secret)) else r"[^\s\"'=]"
    return rf"(?<!{beside}){pattern}(?!{beside})"


def _secrets() -> Iterator[str]:
    """The secrets of the environment as they may appear: plain, escaped as in JSON or Python, or in a URL."""
    for name, value in os.environ.items():
        found = [value, value.strip()] if _SECRET_NAME.search(name) else []
        for secret in filter(str.strip, [*found, *_logins(value)]):
            yield from (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1])
            raw = os.fsencode(secret)
            yield from (quote(raw), quote(raw, safe=""), quote_plus(raw))


def _logins(uri: str) -> list[str]:
    """``user:password`` and the password of a URI, or its token, whatever characters they have."""
    scheme, _, rest = uri.partition("://")
    login = rest.rpartition("@")[0]
    user, colon, password = login.partition(":")
    if colon and "/" not in user:
        return [login, password, unquote(password)]
    return [login] if scheme.startswith("http") and len(login) >= SHORT and "/" not in login else []
