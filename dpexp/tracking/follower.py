"""The follower: the process that delivers a run to MLflow, while it computes and at its end.

``follow.Follower`` starts ``python -m dpexp.tracking.follower RUN_ID BYTES PARENT`` before it imports torch::

    import mlflow              by a thread that runs when nothing else does
    wait                       until the journal has other than BYTES bytes: the run has begun, or again
    every 2 s                  that thread sends the points of new lines
    the journal's lock is free its writer has ended, however it did: the main thread delivers the rest

Nobody tells it anything. It follows a journal, not a process: ranks that restart append to the same journal.
A store that does not answer is retried while the run computes, and once more at its end.
"""

import fcntl
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dpexp.config.process import home
from dpexp.record.files import private_files
from dpexp.record.journal import JOURNAL, is_open
from dpexp.tracking import ledger
from dpexp.tracking.deliver import Upload, deliver, write_log
from dpexp.tracking.follow import journal_bytes
from dpexp.tracking.store import Store, StoreError, import_mlflow, short_message

DELIVERED, NOT_DELIVERED, NO_RUN = 0, 3, 4
POLL_INTERVAL_S = 2.0
RETRY_INTERVAL_S = 10.0
SAMPLING_INTERVAL_S = 1.0  # of system metrics; MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL wins
TAKE_OVER_S = 2.0
"""How long the end of a run waits for the thread beside it, which a busy machine lets starve."""


def follow(run_id: str, before: int, parent: int) -> int:
    """Deliver a run from its beginning to its end; returns the exit code."""
    store, folder = Store.from_environment(home()), home() / "runs" / run_id
    beside_run = ThreadPoolExecutor(1, initializer=run_when_idle)
    beside_run.submit(import_mlflow)
    if not _begins(folder, before, parent):
        return NO_RUN
    with ledger.lock(folder, ledger.FOREVER):  # the follower of the ranks before a restart may be at work
        while ledger.state(folder, store.name) != "yes":
            ended = threading.Event()
            following = beside_run.submit(LiveDelivery(store, folder).run, ended)
            _wait_for_end(folder / JOURNAL)
            ended.set()
            try:
                following.result(TAKE_OVER_S)
            except TimeoutError:  # no thread can leave the idle class: begin again without one
                os.execv(sys.executable, [sys.executable, "-P", "-m", "dpexp.tracking.follower", run_id])
            if not deliver(store, folder).complete and not is_open(folder / JOURNAL):
                return NOT_DELIVERED
    return DELIVERED


def deliver_now(run_id: str) -> int:
    """Deliver a run that has ended; returns the exit code."""
    folder = home() / "runs" / run_id
    with ledger.lock(folder, ledger.FOREVER):
        delivery = deliver(Store.from_environment(home()), folder)
    return DELIVERED if delivery.complete else NOT_DELIVERED


def run_when_idle() -> None:
    """Let this thread, and those that it starts, take nothing from others on this machine."""
    if sys.platform == "linux":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)


def _begins(folder: Path, before: int, parent: int) -> bool:
    """Wait for the first line of the run; False if its process ends without one."""
    while True:
        is_alive = os.getppid() == parent
        if journal_bytes(folder) != before:
            return True
        if not is_alive:
            return False
        time.sleep(0.1)


def _wait_for_end(journal: Path) -> None:
    """Wait until the journal has no writer: the lock that it holds is free."""
    with journal.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)


class LiveDelivery:
    """Sends the points of a run while it computes, and lets MLflow sample the machine."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store, self._folder = store, folder
        self._upload: Upload | None = None
        self._run: Any = None
        self._monitor: Any = None

    def run(self, ended: threading.Event) -> None:
        """Deliver what the run writes, until it has ended."""
        pause_s, again = 0.0, False
        while not ended.wait(pause_s):
            pause_s = POLL_INTERVAL_S
            try:
                self._send(again=again)
            except Exception as error:  # any store, any driver: the last delivery reports it
                write_log(self._folder, f"delivery failed, next attempt later: {short_message(error)}")
                self._upload, self._run, pause_s, again = None, None, RETRY_INTERVAL_S, True
                self._stop_monitor()
        self._stop_monitor()

    def _send(self, *, again: bool) -> None:
        if self._upload is None:
            self._store.open()
            self._upload = Upload(self._store, self._folder, again=again)
        run = self._upload.send_points()
        if run is not self._run:
            self._stop_monitor()
            self._run = run
            if run.info.status != "RUNNING":  # ranks begin again
                self._store.client.update_run(run.info.run_id, status="RUNNING")
            self._start_monitor()

    def _start_monitor(self) -> None:
        """Let MLflow's monitor log system metrics to the run, unless the user disabled them."""
        if os.environ.get("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "true").lower() in ("false", "0"):
            return
        try:
            from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

            options = {"sampling_interval": SAMPLING_INTERVAL_S, "tracking_uri": self._store.uri}
            monitor: Any = SystemMetricsMonitor
            self._monitor = monitor(self._run.info.run_id, resume_logging=True, **options)
            self._monitor.start()
        except Exception as error:  # whatever the machine does not tell
            write_log(self._folder, f"no system metrics: {short_message(error)}")

    def _stop_monitor(self) -> None:
        if self._monitor is not None:
            self._monitor.finish()
        self._monitor = None


def main(run_id: str, *beginning: str) -> None:
    """Deliver, and exit without the exit handlers of libraries."""
    with private_files():
        try:
            code = follow(run_id, *map(int, beginning)) if beginning else deliver_now(run_id)
        except StoreError:
            code = NOT_DELIVERED
    os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
