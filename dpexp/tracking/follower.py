"""The follower: the process that delivers a run to MLflow, while it computes and at its end.

``follow.Follower`` starts ``python -m dpexp.tracking.follower RUN_ID PARENT`` before it imports torch::

    import mlflow              by a thread that runs when nothing else does
    wait                       until the journal has a byte: the run has begun
    every 2 s                  that thread sends the points of new lines
    the journal's lock is free its writer has ended, however it did: the main thread delivers the rest

Nobody tells it anything. A store that does not answer is retried while the run computes, and once more at
its end.
"""

import fcntl
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from dpexp.config.process import home
from dpexp.record.files import private_files
from dpexp.record.journal import JOURNAL, is_open
from dpexp.tracking import ledger
from dpexp.tracking.deliver import Upload, deliver, note_error
from dpexp.tracking.follow import MODULE, has_begun
from dpexp.tracking.store import Store, import_mlflow

DELIVERED, NOT_DELIVERED, NO_RUN = 0, 3, 4
POLL_INTERVAL_S = 2.0
RETRY_INTERVAL_S = 10.0
SAMPLING_INTERVAL_S = 1.0  # of system metrics; MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL wins
TAKE_OVER_S = 2.0
"""How long the end of a run waits for the thread beside it, which a busy machine lets starve."""


def follow(run_id: str, parent: int) -> int:
    """Deliver a run from its beginning to its end; returns the exit code."""
    store, folder = Store.from_environment(home()), home() / "runs" / run_id
    beside_run = ThreadPoolExecutor(1, initializer=_run_when_idle)
    beside = [] if has_begun(folder) else [beside_run.submit(import_mlflow)]
    if not _begins(folder, parent):
        return NO_RUN
    with ledger.lock(folder, forever=True):  # a `sync` may be at work
        if is_open(folder / JOURNAL):
            ended = threading.Event()
            beside.append(beside_run.submit(_deliver_live, store, folder, ended))
            with (folder / JOURNAL).open("rb") as journal:
                fcntl.flock(journal, fcntl.LOCK_SH)  # which its writer holds until it ends
            ended.set()
        if wait(beside, TAKE_OVER_S).not_done:  # no thread can leave the idle class: begin again
            os.execv(sys.executable, [sys.executable, "-P", "-m", MODULE, *sys.argv[1:]])
        is_delivered = ledger.state(folder, store.name) == "yes" or deliver(store, folder).complete
    return DELIVERED if is_delivered else NOT_DELIVERED


def _run_when_idle() -> None:
    """Let this thread, and those that it starts, take nothing from others on this machine."""
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except (AttributeError, OSError):  # a system without this class
        os.nice(19)


def _begins(folder: Path, parent: int) -> bool:
    """Wait for the first line of the run; False if its process ends without one."""
    while True:
        is_alive = os.getppid() == parent
        if has_begun(folder):
            return True
        if not is_alive:
            return False
        time.sleep(0.1)


def _deliver_live(store: Store, folder: Path, ended: threading.Event) -> None:
    """Send the points of a run while it computes, and let MLflow sample the machine, until it has ended."""
    upload, known, pause_s = Upload(store, folder), None, 0.0
    with ExitStack() as monitored:
        while not ended.wait(pause_s):
            try:
                if known is None:
                    store.open()
                run, pause_s = upload.send_points(), POLL_INTERVAL_S
                if known is None:
                    known = run
                    _monitor(store, run.info.run_id, monitored)
            except Exception as error:  # any store, any driver: the last delivery reports it
                note_error(store, folder, error)
                monitored.close()
                upload, known, pause_s = Upload(store, folder), None, RETRY_INTERVAL_S


def _monitor(store: Store, mlflow_run_id: str, monitored: ExitStack) -> None:
    """Let MLflow's monitor log system metrics to the run, unless the user disabled them."""
    if os.environ.get("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "true").lower() in ("false", "0"):
        return
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor  # as mlflow: late

    make: Any = SystemMetricsMonitor
    with suppress(Exception):  # whatever the machine does not tell
        monitor = make(mlflow_run_id, SAMPLING_INTERVAL_S, resume_logging=True, tracking_uri=store.uri)
        monitor.start()
        monitored.callback(monitor.finish)


if __name__ == "__main__":
    code = 1
    try:
        with private_files():
            code = follow(sys.argv[1], *map(int, sys.argv[2:]))
    finally:
        os._exit(code)  # without waiting for threads, and for the exit handlers of libraries
