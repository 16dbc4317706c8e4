"""A small main process: it records and delivers as ``dpexp.run`` does, without torch, and dies as it is told.

``python tracking_driver.py END STEPS PAUSE_S`` prints the run id, then the Delivery as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

import journals  # noqa: E402

from dpexp.config import home  # noqa: E402
from dpexp.record import finish  # noqa: E402
from dpexp.tracking import Uploader  # noqa: E402


def main(how: str, steps: int, pause_s: float, wait_s: float = 10.0) -> int:
    """Run; returns the exit code."""
    uploader = Uploader.start(home())
    if how == "abandon":
        uploader.abandon()
        return 2
    journal = journals.begin(home() / "runs")
    uploader.open(journal.path)
    print(journal.folder.name, uploader.pid, flush=True)
    journals.observe(journal)
    for first in range(0, steps, 10):
        journals.step(journal, first, 10)
        uploader.read_on()
        time.sleep(pause_s)
    _die(how)
    journals.phases(journal)
    error = (
        {"type": "ValueError", "message": "model", "traceback": "Traceback ..."} if how == "raise" else None
    )
    path = journals.end(journal, "failed" if error else "finished", error)
    finish(path)
    began = time.monotonic()
    delivery = uploader.finish(wait_s)
    waited = time.monotonic() - began
    print(json.dumps({**dataclasses.asdict(delivery), "waited_s": waited}), flush=True)
    assert "mlflow" not in sys.modules
    return 0 if delivery.complete else 3


def _die(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        os._exit(7)
    if how == "memory":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        print(len([bytearray(1 << 28) for _ in range(64)]))
    if how == "hang":
        time.sleep(600)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), *map(float, sys.argv[3:])))
