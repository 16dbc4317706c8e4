"""Origin: the proof that a Record was made by this user in this home, and that its config is unaltered.

A run signs its id and config with a key that only the user can read. A Record from elsewhere, or an
altered one, has no signature that fits, however it came into the home.
"""

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpexp.record.journal.durable import private_opener
from dpexp.record.record import Record

_KEY = ".origin-key-{user}"
"""The key's file in DPEXP_HOME: one for each user of a shared home."""


def sign(home: Path, run_id: str, config: Mapping[str, Any]) -> str:
    """The signature of a run that starts now; empty where there can be no key."""
    key = key_of(home)
    return _signature(key, run_id, config) if key else ""


def is_ours(home: Path, record: Record) -> bool:
    """Whether this user made the Record in this home, and its id and config are unaltered."""
    key = _key(home)
    if not key or not isinstance(record.origin, str):
        return False
    expected = _signature(key, record.run_id, record.config)
    return hmac.compare_digest(record.origin.encode(), expected.encode())


def key_of(home: Path) -> bytes:
    """This user's key, made where there is none; empty where there can be none."""
    return _key(home) or _new_key(home)


def _signature(key: bytes, run_id: str, config: Mapping[str, Any]) -> str:
    signed = json.dumps([run_id, config], sort_keys=True, separators=(",", ":"))
    return hmac.new(key, signed.encode(), hashlib.sha256).hexdigest()


def _path(home: Path) -> Path:
    return home / _KEY.format(user=os.getuid())


def _key(home: Path) -> bytes:
    """This user's key; empty if there is none, or one that others could read or have written."""
    try:
        with open(_path(home), "rb", opener=private_opener) as file:
            status = os.fstat(file.fileno())
            is_private = status.st_uid == os.getuid() and not status.st_mode & 0o077
            return file.read() if is_private else b""
    except OSError:
        return b""


def _new_key(home: Path) -> bytes:
    """Make this user's key; of several processes that do at once, one succeeds, and all use its key."""
    temporary = _path(home).with_name(f".origin-key.{os.getpid()}.{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):  # it exists already, or the home is read-only
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
        os.link(temporary, _path(home))
    with contextlib.suppress(OSError):
        temporary.unlink()
    return _key(home)
