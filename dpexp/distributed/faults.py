"""Faults: which rank's error ended a run.

A rank that fails closes its connections, and its peers see no more than that. So each rank writes its error
to the store of the process group, where a peer whose connection broke looks for the cause. If there is
none, it calls the roll: every rank that is alive answers, from a thread of its own, because its main thread
may wait in a collective for the very rank that calls.
"""

from __future__ import annotations

import atexit
import datetime
import json
import os
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dpexp.config.errors import shortened, text_of
from dpexp.distributed.world import Member
from dpexp.record.record import Row
from dpexp.record.redact import redact

COMMUNICATION = re.compile(
    "gloo|nccl|socket|broken pipe|timed out waiting|connection (closed by peer|reset|refused)", re.IGNORECASE
)
MAX_TEXT = 1_000_000
"""Characters of a message or traceback in a Record."""
ROLL_CALL_S = 15.0
"""Time in which every rank that is alive answers a roll call, on a busy host too."""
TERMINATED_S = 5.0
"""The same in a rank that received SIGTERM, which torchrun and schedulers follow by SIGKILL after 30 s."""


class PeerError(RuntimeError):
    """The error of another rank, named in the message; ``kind`` and ``traceback`` are the original's."""

    kind: str = "PeerError"
    traceback: str = ""


class LostContact(PeerError):  # noqa: N818 - Records hold this name
    """Ranks are gone and left no error: killed, or cut off (``is_end``); or they take no part.

    Who reads it from a peer's report gets the same text.
    """

    kind = "LostContact"
    is_end = False


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


class Patience:
    """A time in which something is waited for, cut to ``TERMINATED_S`` once this process is terminated."""

    def __init__(self, seconds: float, is_terminated: Callable[[], bool]) -> None:
        self._deadline = time.monotonic() + seconds
        self._is_terminated = is_terminated
        self._is_cut = False

    def is_over(self) -> bool:
        """Whether the time has passed."""
        if not self._is_cut and self._is_terminated():
            self._is_cut = True
            self._deadline = min(self._deadline, time.monotonic() + TERMINATED_S)
        return time.monotonic() > self._deadline


class RollCallThread(threading.Thread):
    """Answers a roll call, once: writes ``alive/RANK`` when ``call/RANK`` is written."""

    def __init__(self, store: Any, rank: int) -> None:
        super().__init__(name="dpexp roll call", daemon=True)
        self._store, self._rank = store, rank
        self.start()
        atexit.register(self.stop)

    def run(self) -> None:
        with suppress(RuntimeError, OSError):  # the store is gone
            store = self._store.clone()  # a connection of its own: this one waits
            store.wait([f"call/{self._rank}"], datetime.timedelta(days=365))
            store.set(f"alive/{self._rank}", "")

    def stop(self) -> None:
        """End before the interpreter: a thread that returns from C++ while that ends aborts the process."""
        if self.is_alive():
            # In a thread: over a link that was cut, a call to the store may not return.
            threading.Thread(target=self._call_itself, daemon=True).start()
            self.join(TERMINATED_S)
        atexit.unregister(self.stop)

    def _call_itself(self) -> None:
        with suppress(RuntimeError, OSError):
            self._store.set(f"call/{self._rank}", "")


@dataclass(frozen=True)
class Faults:
    """The errors of the members of a group, in its store, which the first rank holds."""

    store: Any
    rank: int
    members: Sequence[Member]
    timeout_s: float

    def reported(self) -> PeerError | None:
        """The error that a rank reported. Raises RuntimeError or OSError where the store is gone."""
        for member in self.members:
            if self.store.check([f"failed/{member.rank}"]):
                fields = json.loads(self.store.get(f"failed/{member.rank}"))
                if fields["type"] == LostContact.kind:
                    return LostContact(fields["message"])
                error = PeerError(f"{member}: {fields['type']}: {fields['message']}")
                error.kind, error.traceback = fields["type"], fields["traceback"]
                return error
        return None

    def all_failed(self, observing: str, text: str) -> bool:
        """Whether every rank calls this with the same text, of an error in a step that is only observed.

        ``observing`` says for what; it is asked once a run for each.
        If not, others may wait for this rank in a collective. So this is none, and its wait has an end.
        """
        patience = Patience(min(ROLL_CALL_S, self.timeout_s), lambda: False)
        with suppress(RuntimeError, OSError):  # the store is gone
            self.store.set(f"{observing}/{self.rank}", text)
            while not patience.is_over():
                absent = self._without(observing)
                raised = [each for each in self.members if each not in absent]
                if any(self.store.get(f"{observing}/{each.rank}").decode() != text for each in raised):
                    return False
                if not absent:
                    return True
                time.sleep(0.05)
        return False

    def peer_error_or(self, error: BaseException) -> BaseException:
        """A peer's error or end, where that explains the signal that is ``error``; else ``error``.

        torchrun terminates the other ranks when one has ended, and to start them again without a lost host.
        """
        try:
            return self.reported() or self._lost(error) or error
        except (RuntimeError, OSError):
            return error

    def _lost(self, error: BaseException) -> LostContact | None:
        """The ranks that do not answer a roll call; None, within milliseconds, if all are alive."""
        self._call_the_roll()
        patience = Patience(TERMINATED_S, lambda: False)
        while gone := self._gone():
            if patience.is_over():
                return self._lost_contact(error, gone)
            time.sleep(0.05)
        return None

    def _call_the_roll(self) -> None:
        self.store.set(f"present/{self.rank}", "")
        for member in self.members:
            self.store.set(f"call/{member.rank}", "")

    def root_cause(
        self, error: BaseException, is_terminated: Callable[[], bool] = lambda: False
    ) -> BaseException:
        """A peer's error where ``error`` is a broken connection; else ``error``, reported to the peers.

        It waits for the peers, a few seconds longer once it ``is_terminated``: torchrun terminates the others
        when one rank is killed, and a scheduler kills what does not end.
        """
        if isinstance(error, PeerError):
            return error
        stopped = [each for each in self.members if each.is_stopped()] if is_communication(error) else []
        if stopped:
            return self._stopped(stopped)
        found: list[BaseException] = []
        patience = Patience(min(ROLL_CALL_S, self.timeout_s), is_terminated)
        # In a thread: over a link that was cut, a call to the store may not return.
        thread = threading.Thread(target=self._exchange, args=(error, found, patience), daemon=True)
        thread.start()
        outer = Patience(max(self.timeout_s, 2 * ROLL_CALL_S), is_terminated)
        while thread.is_alive() and not outer.is_over():
            thread.join(0.1)
        thread.join(1.0)
        if found or not is_communication(error):
            return found[0] if found else error
        return LostContact(f"lost contact with {self.members[0]}, which connects the ranks with each other")

    def _stopped(self, stopped: Sequence[Member]) -> LostContact:
        """Continue them, which then end as the others do; torchrun would wait 30 s to kill them."""
        names = ", ".join(f"rank {each.rank} (pid {each.pid}) on host {each.host}" for each in stopped)
        fault = LostContact(
            f"{names} is stopped, by SIGSTOP, Ctrl-Z or a debugger, and took no part in a collective (waited "
            f"up to {self.timeout_s:g} s, --comm-timeout); it was continued, to end"
        )
        # In a thread: it may be the one with the store, which answers when it continues.
        thread = threading.Thread(target=self._report, args=(fault,), daemon=True)
        thread.start()
        thread.join(1.0)
        for each in stopped:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(each.pid, signal.SIGCONT)
        thread.join(TERMINATED_S)
        return fault

    def _report(self, error: BaseException) -> None:
        """Let the peers read the error. Raises nothing where the store is gone."""
        with suppress(RuntimeError, OSError):
            self.store.set(f"failed/{self.rank}", json.dumps(error_row(error)))

    def _exchange(self, error: BaseException, found: list[BaseException], patience: Patience) -> None:
        try:
            if is_communication(error):
                found.append(self._roll_call(error, patience))
                return
            self.store.set(f"failed/{self.rank}", json.dumps(error_row(error)))
        except (RuntimeError, OSError):
            if is_communication(error):
                return
        found.append(error)

    def _roll_call(self, error: BaseException, patience: Patience) -> PeerError:
        """The error that a peer reported; without one, what the answers of the ranks say."""
        self._call_the_roll()
        while True:
            peer_error = self.reported()
            if peer_error is not None:
                return peer_error
            absent = self._without("present")
            if not absent or patience.is_over():
                return self._lost_contact(error, absent)
            time.sleep(0.05)

    def _without(self, key: str) -> list[Member]:
        return [each for each in self.members if not self.store.check([f"{key}/{each.rank}"])]

    def _gone(self) -> list[Member]:
        absent = self._without("present")
        return [each for each in self._without("alive") if each in absent]

    def _lost_contact(self, error: BaseException, absent: Sequence[Member]) -> LostContact:
        """``absent`` did not notice a broken connection: they are gone, or alive in some other work."""
        gone = self._gone()
        waited = f"waited up to {self.timeout_s:g} s, --comm-timeout"
        if gone:
            fault = LostContact(
                f"lost contact with {', '.join(map(str, gone))}: it was killed, or its host or the "
                f"link to it is gone ({waited})"
            )
            fault.is_end = True
            return fault
        if absent:
            return LostContact(
                f"{', '.join(map(str, absent))} did not take part in a collective in time: the process is "
                f"alive, but busy or blocked elsewhere ({waited})"
            )
        return LostContact(
            f"the ranks lost contact with each other for {self.timeout_s:g} s "
            f"(--comm-timeout): {str(error).splitlines()[0]}"
        )
