"""Errors of a store, each as one line that says what to do and contains no credentials."""

import errno
import re

from dpexp.record.redact import redact

_TRUST = "or MLFLOW_TRACKING_INSECURE_TLS=true to trust any"
_UNKNOWN = (
    "its certificate is not of a known authority: set MLFLOW_TRACKING_SERVER_CERT_PATH to the file with the "
    f"certificate that signed it, {_TRUST}"
)
_MESSAGES = {
    "self-signed certificate": _UNKNOWN,
    "unable to get local issuer": _UNKNOWN,
    "is not valid for": "its certificate is for another host: write that host in MLFLOW_TRACKING_URI, "
    f"{_TRUST}",
    "certificate has expired": f"its certificate has expired: renew it, {_TRUST}",
    "certificate verify failed": "its certificate cannot be verified: see "
    f"MLFLOW_TRACKING_SERVER_CERT_PATH, {_TRUST}",
    "WRONG_VERSION_NUMBER": "it does not speak TLS: write http:// in MLFLOW_TRACKING_URI",
    "suitable TLS CA certificate bundle": "the file that "
    "MLFLOW_TRACKING_SERVER_CERT_PATH names does not exist",
    "Too many open files": "this process may not open more files: raise the limit with ulimit -n",
    "unable to open database file": "its file cannot be opened: is its folder there and writable, and may "
    "this process open more files (ulimit -n)?",
    "Connection refused": "connection refused",
    "Name or service not known": "unknown host",
    "Temporary failure in name resolution": "unknown host",
    "Read timed out": "it accepts connections, but does not answer in time",
    "timed out": "no answer in time",
    "Connection aborted": "the connection was cut",
    "Connection reset": "the connection was cut",
    "database or disk is full": "the disk is full",
    "No space left on device": "the disk is full",
    "readonly database": "the store is read-only",
    "database is locked": "another process keeps the store locked",
    "too long for type character varying": "a text is longer than this database takes; the address of "
    "a run's artifacts may have 200 characters: choose a shorter DPEXP_HOME",
}
"""Messages for texts that libraries bury in long errors; the first match counts."""
_OS_ERROR = re.compile(r"""\[Errno (\d+)\] [^:]+: (['"])(.+?)\2""")
_ABOUT_FILES = {
    errno.EACCES: "is not accessible for this user: change its mode, or run as its owner",
    errno.EPERM: "is not accessible for this user: change its mode, or run as its owner",
    errno.EROFS: "is on a file system that is read-only",
    errno.ENOTDIR: "needs a folder where there is something else: rename that",
    errno.EEXIST: "needs a folder where there is something else: rename that",
}
"""Messages on a file, by the number of the error of the system."""


class StoreError(RuntimeError):
    """The store cannot be used: what is wrong, where, and what to do. Contains no credentials."""


def short_message(error: BaseException) -> str:
    """One line on an error that a store or its driver raised, free of credentials."""
    if isinstance(error, StoreError):
        return redact(str(error))
    text = first_line(error)
    for fragment, message in _MESSAGES.items():
        if fragment in text:
            return message
    text = redact(text)  # before it is cut: a part of a credential is not recognized
    if (found := _OS_ERROR.search(text)) and (about := _ABOUT_FILES.get(int(found[1]))):
        text = f"{found[3]} {about}"
    return text if len(text) <= 300 else text[:297] + "..."


def first_line(error: BaseException) -> str:
    """The first line of an error's text: MLflow and SQLAlchemy append complete SQL statements.

    Not SQLAlchemy's line on when it sent the statement, which it puts before the error of the database.
    """
    lines = [
        line for line in str(error).strip().splitlines() if not line.startswith("(raised as a result of")
    ]
    return lines[0] if lines else type(error).__name__
