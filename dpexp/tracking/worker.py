"""The uploader process: ``python -m dpexp.tracking.worker HOME PARENT``, started by ``Uploader.start``.

::

    warm up  import mlflow, check the store          a thread reads the pipe and keeps only what counts:
    wait     until a run opens                       open? finish? abandoned? is the main process alive?
    deliver  whenever told to read on, or every 2 s
    finish   the rest, the end; answer; then the pictures, for which nobody waits

A store that is away is tried again while the run goes on, and once more at its end. When the main process
dies the journal says how far it came; the MLflow run then ends as FAILED or KILLED.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from dpexp.record import Row, is_open, redact
from dpexp.tracking import ledger, system
from dpexp.tracking.errors import StoreError
from dpexp.tracking.store import Store, describe
from dpexp.tracking.upload import SYSTEM, Upload
from dpexp.tracking.uploader import Delivery, how_to_deliver

WAKE_S = 2.0
PATIENCE_S = 60.0
"""How long to go on for a run whose main process no longer waits."""
NICE = 10
LOG = "uploader.log"


class Pipe:
    """What the main process says, read in a thread so that its pipe never fills."""

    def __init__(self, parent: int) -> None:
        self.journal: Path | None = None
        self.begun_again = False
        self.is_over = False
        self._parent = parent
        self._sampler: system.Sampler | None = None
        self._news = threading.Event()
        threading.Thread(target=self._read, daemon=True, name="pipe").start()

    def _read(self) -> None:
        try:
            for line in self._lines():
                command: Row = json.loads(line)
                if command["do"] == "open":
                    self._opened(Path(command["journal"]), command["again"])
                elif command["do"] in ("finish", "abandon"):
                    break
                self._news.set()
        finally:
            self.is_over = True
            self._news.set()

    def _lines(self) -> Iterator[bytes]:
        """What was said, to the last word: this process may come to read it after the other's death.

        The pipe's end does not tell: a child of the main process may hold it open.
        """
        received = b""
        while True:
            was_alive = self.has_parent
            if select.select([0], [], [], WAKE_S if was_alive else 0)[0]:
                chunk = os.read(0, 65536)
                if not chunk:
                    return
                *lines, received = (received + chunk).split(b"\n")
                yield from lines
            elif not was_alive:
                return

    def _opened(self, journal: Path, again: bool) -> None:
        """The run begins, and may be over before mlflow is imported: sample the machine from here on."""
        self.begun_again = again
        self.journal = journal
        self._sampler = system.start(journal.with_name(SYSTEM), self._parent)

    def stop_sampling(self) -> None:
        """Take the last sample."""
        if self._sampler is not None:
            self._sampler.stop()

    @property
    def has_parent(self) -> bool:
        """Whether the main process lives."""
        return os.getppid() == self._parent

    def wait(self) -> None:
        """Until there is news, or it is time to look by oneself."""
        self._news.wait(WAKE_S)
        self._news.clear()


class Worker:
    """Delivers one run, from its opening to its end."""

    def __init__(self, home: Path, pipe: Pipe, answer: Callable[[Delivery], None]) -> None:
        self._store = Store.of(home)
        self._pipe = pipe
        self._answer = answer
        self._upload: Upload | None = None
        self._retry_at = 0.0
        self._pause_s = 1.0

    def work(self) -> None:
        """Until the run is over, or none began; the answer is given as soon as the facts are delivered."""
        self._warm_up()
        while self._pipe.journal is None and not self._pipe.is_over:
            self._pipe.wait()
        journal = self._pipe.journal
        if journal is None:
            return
        sys.stderr = Log(journal.with_name(LOG))
        try:
            # The uploader of the process before, which died, may still be at its last delivery.
            with ledger.delivering(journal.parent, wait_s=PATIENCE_S if self._pipe.begun_again else 0):
                while not self._pipe.is_over:
                    self._advance(journal)
                    self._pipe.wait()
                self._pipe.stop_sampling()
                delivery = self._finish(journal)
                self._answer(delivery)
                if delivery.complete:
                    self._draw(journal)
        except ledger.Busy as error:
            self._answer(Delivery(False, f"{error}; to make sure: {how_to_deliver(journal.parent.name)}"))

    def _warm_up(self) -> None:
        """A store that can't be used now may be usable when the run opens: then it is said."""
        with contextlib.suppress(StoreError):
            self._store.warm_up()

    def _advance(self, journal: Path) -> None:
        """Deliver what is there; after a failure wait a little longer each time."""
        if time.monotonic() < self._retry_at:
            return
        try:
            self._opened(journal).advance()
            self._pause_s = 1.0
        except Exception as error:  # any store, any driver: it is tried again, and the end says why
            print(f"not yet: {describe(error)}", file=sys.stderr)
            self._retry_at = time.monotonic() + self._pause_s
            self._pause_s = min(30.0, 2 * self._pause_s)

    def _finish(self, journal: Path) -> Delivery:
        _wait_until_closed(journal, self._pipe)
        try:
            return self._opened(journal).facts()
        except Exception as error:  # as above; the traceback is in the log
            traceback.print_exc()
            return Delivery(
                False,
                f"not delivered: {describe(error)}; deliver it with: {how_to_deliver(journal.parent.name)}",
            )

    def _draw(self, journal: Path) -> None:
        """The pictures; what keeps them from coming is in the log, and ``runs.py sync`` tries again."""
        try:
            problems = self._opened(journal).pictures().message.split("; ")[1:]
        except Exception:  # as above
            traceback.print_exc()
        else:
            for problem in problems:
                print(problem, file=sys.stderr)

    def _opened(self, journal: Path) -> Upload:
        self._store.open()
        if self._upload is None:
            self._upload = Upload(self._store, journal, fresh=not self._pipe.begun_again)
            if self._pipe.begun_again:
                self._upload.go_on()
        return self._upload


def _wait_until_closed(journal: Path, pipe: Pipe) -> None:
    """The main process's last moments: its pipe may close before its lock is gone.

    Where it has gone and the journal is open, the run goes on in another process, and so in other hands.
    """
    deadline = time.monotonic() + PATIENCE_S
    while is_open(journal) and pipe.has_parent and time.monotonic() < deadline:
        time.sleep(0.02)


class Log:
    """stderr in a file beside the journal, made at the first word, free of credentials."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError), open(self._path, "a") as file:
            file.write(redact(text))
        return len(text)

    def flush(self) -> None:
        """Nothing waits."""


@contextlib.contextmanager
def _answering() -> Iterator[int]:
    """The descriptor of the answer; what libraries print goes to stderr instead."""
    answer = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    yield answer


def main(home: str, parent: str) -> None:
    """Work, answer, and leave at once: whatever a library would still do at exit is of no use."""
    os.nice(NICE)
    with _answering() as descriptor:

        def answer(delivery: Delivery) -> None:
            with contextlib.suppress(BrokenPipeError):  # nobody waits any more
                os.write(descriptor, delivery.to_line())

        Worker(Path(home), Pipe(int(parent)), answer).work()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
