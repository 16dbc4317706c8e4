"""Faults: which rank's error ended a run.

A rank that fails closes its connections, and its peers see no more than that. So each rank writes its error
to the store of the process group, where a peer whose connection broke looks for the cause:

    a rank that was killed    before    an error of a rank    before    a connection that was lost
"""

from __future__ import annotations

import json
import re
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from dpexp.config.errors import Terminated, text_of
from dpexp.config.words import shortened
from dpexp.distributed.world import Member
from dpexp.record.record import Row
from dpexp.record.redact import redact

COMMUNICATION = re.compile(
    "gloo|nccl|socket|broken pipe|timed out waiting|connection (closed by peer|reset|refused)", re.IGNORECASE
)
MAX_TEXT = 1_000_000
"""Characters of a message or traceback in a Record."""
SIGNALS = (Terminated.__name__, KeyboardInterrupt.__name__)
PATIENCE_S = 5.0
"""Time in which every rank that is alive writes what it ended with."""


class PeerError(RuntimeError):
    """The error of another rank, named in the message; ``kind`` and ``traceback`` are the original's."""

    kind: str = "PeerError"
    traceback: str = ""


class LostContact(PeerError):  # noqa: N818 - Records hold this name
    """Ranks are gone and left no error: killed, or cut off; or they take no part."""

    kind = "LostContact"


def error_row(error: BaseException) -> Row:
    """``error`` of the Record: type, message and traceback, for a PeerError those of the other rank."""
    kind, trace = type(error).__name__, "".join(traceback.format_exception(error))
    if isinstance(error, PeerError):
        kind, trace = error.kind, error.traceback or trace
    texts = (redact(text_of(error)), redact(trace))  # before they are cut
    message, trace = (shortened(text, MAX_TEXT, MAX_TEXT) for text in texts)
    return {"type": kind, "message": message, "traceback": trace}


def is_communication(error: BaseException) -> bool:
    """Whether it is the error of a connection to a peer, which broke or timed out."""
    import torch.distributed as dist  # which --help need not import

    is_known = type(error) is RuntimeError and COMMUNICATION.search(text_of(error)) is not None
    return is_known or isinstance(error, dist.DistError)


@dataclass(frozen=True)
class Faults:
    """The errors of the members of a group, in its store, which the first rank holds.

    ``lost/RANK`` says that the rank is alive after an error, ``failed/RANK`` what its error is.
    """

    store: Any
    rank: int
    members: Sequence[Member]
    timeout_s: float

    def all_failed(self, observing: str, text: str) -> bool:
        """Whether every rank calls this with the same text, of an error in a step that is only observed.

        ``observing`` says for what; it is asked once per run for each. A rank that does not call it may wait
        for this one in a collective.
        """
        keys = [f"{observing}/{member.rank}" for member in self.members]
        try:
            self.store.set(f"{observing}/{self.rank}", text)
            self.store.wait(keys, timedelta(seconds=PATIENCE_S))
            return all(self.store.get(key).decode() == text for key in keys)
        except (RuntimeError, OSError):  # not every rank, or the store is gone
            return False

    def root_cause(self, error: BaseException) -> BaseException:
        """What ended this rank: ``error``, which is reported to the peers, or the error or end of a peer.

        A broken connection is explained by a peer, for which this waits a few seconds. So is a signal, at
        once: torchrun terminates the others when one rank was killed.
        """
        is_signal = isinstance(error, KeyboardInterrupt | Terminated)
        is_own = not is_signal and not is_communication(error)
        with suppress(RuntimeError, OSError):  # the store is gone
            self.store.set(f"lost/{self.rank}", "")
            if isinstance(error, PeerError):
                return error
            if not (is_own or is_signal):
                return self._explained(error)
            if is_signal and (found := self._killed() or self._reported(but_for=SIGNALS)):
                return found
            self.store.set(f"failed/{self.rank}", json.dumps(error_row(error)))
            return error
        if is_own or is_signal:
            return error
        return LostContact(f"lost contact with {self.members[0]}, which connects the ranks with each other")

    def _explained(self, error: BaseException) -> PeerError:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if found := self._killed() or self._reported():
                return found
            time.sleep(0.05)
        waited = f"waited up to {self.timeout_s:g} s, --comm-timeout"
        if absent := self._silent():
            return LostContact(
                f"lost contact with {_listed(absent)}: it was killed or is blocked, or its host or the link "
                f"to it is gone ({waited})"
            )
        return LostContact(f"the ranks lost contact with each other ({waited}): {str(error).splitlines()[0]}")

    def _killed(self) -> LostContact | None:
        killed = [member for member in self._silent() if member.has_ended()]
        if not killed:
            return None
        return LostContact(f"lost contact with {_listed(killed)}: it was killed, or ended itself")

    def _reported(self, but_for: Sequence[str] = ()) -> PeerError | None:
        """The error that a rank reported, of another type than these."""
        for member in self.members:
            if self.store.check([f"failed/{member.rank}"]):
                fields = json.loads(self.store.get(f"failed/{member.rank}"))
                if fields["type"] not in but_for:
                    error = PeerError(f"{member}: {fields['type']}: {fields['message']}")
                    error.kind, error.traceback = fields["type"], fields["traceback"]
                    return error
        return None

    def _silent(self) -> list[Member]:
        return [member for member in self.members if not self.store.check([f"lost/{member.rank}"])]


def _listed(members: Sequence[Member]) -> str:
    return ", ".join(map(str, members))
