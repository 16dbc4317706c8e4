"""The uploader process: ``python -m`` this module with ``PARENT``, as ``Uploader`` starts it.

::

    warm up    import mlflow, check the store        a thread reads the command pipe meanwhile
    wait       until a run opens
    deliver    after every command, or every 2 s
    finish     the last points, the end of the MLflow run, the figures; then send the Delivery

A process cannot raise its priority again, but each thread has its own: beside the run a thread works at a low
one; ``finish``, for which the main process waits, is done by another at the usual one.

A store that does not answer is retried while the run is in progress, and once more at its end. When the main
process dies, the journal shows how far it came; the MLflow run then ends as FAILED or KILLED.
"""

import contextlib
import json
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dpexp.config.process import home
from dpexp.record.files import private_files
from dpexp.record.journal import is_open
from dpexp.record.record import Row
from dpexp.record.redact import redact
from dpexp.tracking.delivery import ledger
from dpexp.tracking.delivery.ledger import DeliveryLockedError
from dpexp.tracking.delivery.mlflow_run import MlflowRun
from dpexp.tracking.delivery.upload import LOG, Upload
from dpexp.tracking.errors import short_message
from dpexp.tracking.process.uploader import Delivery, how_to_deliver
from dpexp.tracking.store.store import Store

FLUSH_INTERVAL_S = 2.0
_GRACE_S = 60.0  # for a previous uploader's lock, and for the main process to close its journal
RETRY_INTERVAL_S = 10.0
SAMPLING_INTERVAL_S = 1.0  # of system metrics; MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL wins
_NICENESS = 10  # of what works beside the run


class CommandPipe:
    """The main process's commands, read in a thread so that the pipe never fills."""

    def __init__(self, parent: int) -> None:
        self.journal: Path | None = None
        self.again = False
        self.closed = False
        self._parent = parent
        self._changed = threading.Event()
        threading.Thread(target=self._read, daemon=True, name="commands").start()

    def _read(self) -> None:
        os.nice(_NICENESS)
        try:
            for line in self._lines():
                command: Row = json.loads(line)
                if command["do"] == "open":
                    self.again = command["again"]
                    self.journal = Path(command["journal"])
                elif command["do"] in ("finish", "abandon"):
                    break
                self._changed.set()
        finally:
            self.closed = True
            self._changed.set()

    def _lines(self) -> Iterator[bytes]:
        """Every line that the main process wrote, also those read only after its death.

        The end of the file does not show its death: a child of the main process may hold the pipe open.
        """
        received = b""
        while True:
            was_alive = self.parent_lives()
            if select.select([0], [], [], FLUSH_INTERVAL_S if was_alive else 0)[0]:
                chunk = os.read(0, 65536)
                if not chunk:
                    return
                *lines, received = (received + chunk).split(b"\n")
                yield from lines
            elif not was_alive:
                return

    def parent_lives(self) -> bool:
        return os.getppid() == self._parent

    def wait(self) -> None:
        """Wait for the next command, or for the flush interval."""
        self._changed.wait(FLUSH_INTERVAL_S)
        self._changed.clear()


class UploaderProcess:
    """Delivers one run, from its beginning to its end."""

    def __init__(self, home: Path, pipe: CommandPipe, send: Callable[[Delivery], None]) -> None:
        self._store = Store.from_environment(home)
        self._pipe = pipe
        self._send = send
        self._upload: Upload | None = None
        self._retry_at = 0.0
        self._monitor: tuple[MlflowRun, Any] | None = None

    def run(self) -> None:
        """Deliver until the run has ended; return at once if none began."""
        with ThreadPoolExecutor(1, initializer=os.nice, initargs=(_NICENESS,)) as beside_run:
            journal = beside_run.submit(self._wait_for_run).result()
            if journal is None:
                return
            self._send(self._delivered(journal, beside_run))

    def _delivered(self, journal: Path, beside_run: ThreadPoolExecutor) -> Delivery:
        """Deliver the run while and after it runs; how that ended, whatever was raised."""
        run_id = journal.parent.name
        try:
            # The uploader of the ranks before a restart may still be delivering.
            patience_s = _GRACE_S if self._pipe.again else 0
            with ledger.delivery_lock(journal.parent, patience_s):
                beside_run.submit(self._follow, journal).result()
                return self._complete(journal)
        except DeliveryLockedError as error:
            return Delivery(False, f"{error}; to make sure: {how_to_deliver(run_id)}")
        except Exception as error:  # any store, any driver
            _log(journal, traceback.format_exc())
            message = f"not delivered: {short_message(error)}; deliver it with: {how_to_deliver(run_id)}"
            return Delivery(False, message)

    def _wait_for_run(self) -> Path | None:
        """Import mlflow, and return the journal of the run; None if none begins."""
        with contextlib.suppress(Exception):  # if it lasts, the delivery reports it
            self._store.warm_up()
        while self._pipe.journal is None and not self._pipe.closed:
            self._pipe.wait()
        return self._pipe.journal

    def _follow(self, journal: Path) -> None:
        """Deliver what the run writes, until it ends."""
        while not self._pipe.closed:
            self._advance(journal)
            self._pipe.wait()
        self._stop_monitor()

    def _complete(self, journal: Path) -> Delivery:
        """Deliver the rest."""
        # The main process may release the journal's lock after it closes the pipe.
        deadline = time.monotonic() + _GRACE_S
        while is_open(journal) and self._pipe.parent_lives() and time.monotonic() < deadline:
            time.sleep(0.02)
        return self._open_upload(journal).complete()

    def _advance(self, journal: Path) -> None:
        if time.monotonic() < self._retry_at:
            return
        try:
            run = self._open_upload(journal).advance()
        except Exception as error:  # any store, any driver: retried, and the last delivery reports it
            _log(journal, f"delivery failed, next attempt later: {short_message(error)}")
            self._retry_at = time.monotonic() + RETRY_INTERVAL_S
            self._stop_monitor()  # it does not try again
            return
        if run is not None:
            self._monitor_machine(journal, run)

    def _open_upload(self, journal: Path) -> Upload:
        self._store.open()
        if self._upload is None:
            upload = Upload(self._store, journal)
            if self._pipe.again:
                upload.mark_running()
            self._upload = upload
        return self._upload

    def _monitor_machine(self, journal: Path, run: MlflowRun) -> None:
        """Let MLflow's monitor log system metrics to the run, unless the user disabled them."""
        if os.environ.get("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "true").lower() in ("false", "0"):
            return
        if self._monitor is not None and self._monitor[0] == run:
            return
        self._stop_monitor()
        self._monitor = run, None
        try:
            from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

            new: Any = SystemMetricsMonitor
            uri, interval_s = self._store.uri, SAMPLING_INTERVAL_S
            monitor = new(run.run_id, sampling_interval=interval_s, resume_logging=True, tracking_uri=uri)
            monitor.start()
            self._monitor = run, monitor
        except Exception as error:  # whatever the machine does not tell
            _log(journal, f"no system metrics: {short_message(error)}")

    def _stop_monitor(self) -> None:
        if self._monitor is not None and self._monitor[1] is not None:
            self._monitor[1].finish()
        self._monitor = None


def _log(journal: Path, text: str) -> None:
    """Append to the log beside the journal, without credentials. The first text creates it."""
    with contextlib.suppress(OSError), journal.with_name(LOG).open("a") as file:
        file.write(redact(text) + "\n")


def main(parent: str) -> None:
    """Deliver, and exit without the exit handlers of libraries."""
    results = os.dup(1)
    os.dup2(2, 1)  # what libraries print does not reach the main process
    sys.stdout = sys.stderr

    def send(delivery: Delivery) -> None:
        with contextlib.suppress(BrokenPipeError):  # the main process no longer waits
            os.write(results, json.dumps(vars(delivery)).encode() + b"\n")

    with private_files():
        UploaderProcess(home(), CommandPipe(int(parent)), send).run()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
