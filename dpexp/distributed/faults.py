"""Faults: which rank's error ended a run.

A rank that fails closes its connections, and its peers see no more than that. So each rank writes its error
to the store of the process group, where a peer whose connection broke looks for the cause. If there is none,
it names the ranks that have written nothing: they were killed, or are on a host that is gone.
"""

from __future__ import annotations

import json
import re
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dpexp.config.errors import Terminated, shortened, text_of
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
    import torch.distributed as dist

    is_known = type(error) is RuntimeError and COMMUNICATION.search(text_of(error)) is not None
    return is_known or isinstance(error, dist.DistError)


@dataclass(frozen=True)
class Faults:
    """The errors of the members of a group, in its store, which the first rank holds."""

    store: Any
    rank: int
    members: Sequence[Member]
    timeout_s: float

    def all_failed(self, observing: str, text: str) -> bool:
        """Whether every rank calls this with the same text, of an error in a step that is only observed.

        ``observing`` says for what; it is asked once a run for each.
        If not, others may wait for this rank in a collective. So this is none, and its wait has an end.
        """
        deadline = time.monotonic() + min(PATIENCE_S, self.timeout_s)
        with suppress(RuntimeError, OSError):  # the store is gone
            self.store.set(f"{observing}/{self.rank}", text)
            while time.monotonic() < deadline:
                absent = self._without(observing)
                raised = [each for each in self.members if each not in absent]
                if any(self.store.get(f"{observing}/{each.rank}").decode() != text for each in raised):
                    return False
                if not absent:
                    return True
                time.sleep(0.05)
        return False

    def root_cause(self, error: BaseException) -> BaseException:
        """What ended this rank: ``error``, which is reported to the peers, or the error or end of a peer.

        A broken connection is explained by a peer, for which this waits a few seconds. So is a signal, at
        once: torchrun terminates the others when one rank was killed.
        """
        with suppress(RuntimeError, OSError):  # the store is gone
            self.store.set(f"lost/{self.rank}", "")
        if isinstance(error, PeerError):
            return error
        is_signal = isinstance(error, KeyboardInterrupt | Terminated)
        try:
            if is_signal:
                return self._reported(SIGNALS) or self._killed() or self._report(error)
            if not is_communication(error):
                return self._report(error)
            return self._explained(error)
        except (RuntimeError, OSError):  # the store is gone
            if is_signal or not is_communication(error):
                return error
        return LostContact(f"lost contact with {self.members[0]}, which connects the ranks with each other")

    def _report(self, error: BaseException) -> BaseException:
        """Let the peers read the error."""
        self.store.set(f"failed/{self.rank}", json.dumps(error_row(error)))
        return error

    def _reported(self, but_for: Sequence[str] = ()) -> PeerError | None:
        """The error that a rank reported, of another type than these."""
        for member in self.members:
            if self.store.check([f"failed/{member.rank}"]):
                fields = json.loads(self.store.get(f"failed/{member.rank}"))
                if fields["type"] in but_for:
                    continue
                error = PeerError(f"{member}: {fields['type']}: {fields['message']}")
                error.kind, error.traceback = fields["type"], fields["traceback"]
                return error
        return None

    def _killed(self) -> LostContact | None:
        """The ranks of this host that have ended without a word."""
        silent = self._without("lost")
        killed = [each for each in self._without("failed") if each in silent and each.has_ended()]
        return (
            LostContact(f"lost contact with {_listed(killed)}: it was killed, or ended itself")
            if killed
            else None
        )

    def _explained(self, error: BaseException) -> PeerError:
        """The error or end of a peer, which a broken connection comes from."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if found := self._reported() or self._killed():
                return found
            time.sleep(0.05)
        waited = f"waited up to {self.timeout_s:g} s, --comm-timeout"
        failed = self._without("failed")
        if absent := [each for each in self._without("lost") if each in failed]:
            return LostContact(
                f"lost contact with {_listed(absent)}: it was killed or is blocked, or its host or the link "
                f"to it is gone ({waited})"
            )
        return LostContact(f"the ranks lost contact with each other ({waited}): {str(error).splitlines()[0]}")

    def _without(self, key: str) -> list[Member]:
        return [each for each in self.members if not self.store.check([f"{key}/{each.rank}"])]


def _listed(members: Sequence[Member]) -> str:
    return ", ".join(map(str, members))
