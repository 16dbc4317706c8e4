"""Faults: what ended a rank, told once. A rank that fails takes its peers' connections with it; only
its own error says why."""

from __future__ import annotations

import json
import traceback
from typing import Any

_SIGNS = (
    "gloo",
    "connection closed by peer",
    "connection reset",
    "connection refused",
    "broken pipe",
    "nccl",
    "timed out waiting",
    "socket",
)


class PeerError(RuntimeError):
    """Another rank raised: its error, with its rank and host before it and its traceback in ``told``."""

    kind: str = "PeerError"
    traceback: str = ""

    @classmethod
    def of(cls, line: bytes) -> PeerError:
        """From what ``told`` made of the peer's error."""
        facts = json.loads(line)
        error = cls(f"{facts['who']}: {facts['kind']}: {facts['message']}")
        error.kind, error.traceback = facts["kind"], facts["traceback"]
        return error


class LostContact(PeerError):  # noqa: N818 - it reads as what happened
    """TorchProcessGroup are gone without a word: killed, or cut off."""

    kind = "LostContact"


def error_to_json(who: Any, error: BaseException) -> str:
    """The error as one line of JSON, for the peers."""
    return json.dumps(
        {
            "who": str(who),
            "kind": type(error).__name__,
            "message": str(error),
            "traceback": "".join(traceback.format_exception(error)),
        }
    )


def is_communication(error: BaseException) -> bool:
    """Whether the error only says that the connection to a peer broke, or that it was silent too long."""
    import torch.distributed as dist

    if isinstance(error, dist.DistError):
        return True
    words = str(error).lower()
    return type(error) is RuntimeError and any(sign in words for sign in _SIGNS)
