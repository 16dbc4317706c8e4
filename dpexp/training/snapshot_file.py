"""Snapshot file: one line of JSON {step, bytes, sha256}, then the state of a run as of ``torch.save``.

It is read as data: nothing in a file runs code. Besides tensors and plain values it may hold NumPy's.

``torch.distributed.checkpoint`` is not used: it has no hash (of 198 flipped bits in its file, 114 loaded as
wrong numbers without an error), and it keeps a shard on one host only, so a lost host loses it.
"""

import hashlib
import io
import json
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpexp.config.errors import describe
from dpexp.record.journal.durable import read_file, write_atomically

State = dict[str, Any]
KEYS = {"step": int, "config": dict, "parameters": dict, "buffers": dict, "random": list}
"""What every state has, and of which type."""
READABLE: list[Any] = [
    np.ndarray,
    np.dtype,
    *(each for each in vars(np.dtypes).values() if isinstance(each, type)),
    *(value.__reduce__()[0] for value in (np.zeros(1), np.float64(0))),
    frozenset,
    deque,
]
"""What a file may hold besides what ``torch.load`` reads as data."""


class DamagedError(RuntimeError):
    """A snapshot whose content is not what was written, or not the state of a run."""


class UnreadableStateError(RuntimeError):
    """A state that cannot be read again after it was written: which value of it, and what can be."""


def write_snapshot(path: Path, step: int, state: State) -> None:
    """Write a state atomically, and read it again. Raises UnreadableStateError, OSError."""
    try:
        content = _encoded(state)
    except Exception as error:  # what ``__reduce__`` of a user's object raises
        raise _unreadable(state) from error
    header = {"step": step, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    write_atomically(path, json.dumps(header).encode() + b"\n" + content)
    del content
    try:
        read_snapshot(path)
    except DamagedError as error:
        path.unlink()
        raise _unreadable(state) from error


def read_snapshot(path: Path) -> State:
    """The state in a file. Raises DamagedError, for whatever is there and for a byte that differs."""
    try:
        line, _, content = read_file(path).partition(b"\n")
        try:
            matches = json.loads(line)["sha256"] == hashlib.sha256(content).hexdigest()
        except (ValueError, KeyError, TypeError, RecursionError):
            matches = False
        if not matches:
            raise DamagedError("its hash is not that of its content")
        state: State = _decoded(content)
        wrong = [key for key, kind in KEYS.items() if not isinstance(dict(state).get(key), kind)]
        if wrong or f"{state['step']:010d}" != path.stem.removeprefix("step-"):
            raise DamagedError(f"it is not the state of this step of a run ({', '.join(wrong) or 'step'})")
    except Exception as error:  # of the file, its archive or its pickle: anything, and never a reason to stop
        reason = describe(error).splitlines()[0] if not isinstance(error, DamagedError) else str(error)
        raise DamagedError(f"snapshot {path} is damaged: {reason}") from error
    return state


def _encoded(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _decoded(content: bytes) -> Any:
    with torch.serialization.safe_globals(READABLE):
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def _unreadable(state: State) -> UnreadableStateError:
    """Names the first value that cannot be read again; without one it was the file."""
    where: list[str] = []
    value: Any = state
    while isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        found = next(((key, each) for key, each in items if not _is_readable(each)), None)
        if found is None:
            break
        where.append(str(found[0]))
        value = found[1]
    if not where:
        return UnreadableStateError(
            "a snapshot could not be read again after it was written: see to the disk"
        )
    kind = type(value)
    return UnreadableStateError(
        f"a snapshot cannot hold {'/'.join(where)}, a {kind.__module__}.{kind.__qualname__}: a run could not "
        "resume from it. Keep it as tensors, numbers, texts, NumPy arrays, or lists, sets and dicts of them"
    )


def _is_readable(value: Any) -> bool:
    try:
        _decoded(_encoded(value))
    except Exception:  # what a user's object raises
        return False
    return True
