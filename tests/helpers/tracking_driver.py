"""A small main process that records and delivers as ``dpexp.run`` does, without torch.

``python tracking_driver.py END STEPS WAIT_S`` prints the run id and the pid of its follower. It records
STEPS steps, and N more for every line ``N`` on stdin. At the end of stdin it ends as END says; if that does
not kill it, it prints the Delivery as JSON.
"""

import dataclasses
import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

from dpexp.config.process import home  # noqa: E402
from dpexp.record.fold import finish  # noqa: E402
from dpexp.record.journal import new_run_id  # noqa: E402
from dpexp.tracking.follow import Follower  # noqa: E402
from helpers import journals  # noqa: E402

ERROR = {"type": "ValueError", "message": "model", "traceback": "Traceback ..."}


def main(end: str, steps: int, wait_s: float) -> int:
    """Run; returns the exit code."""
    run_id = new_run_id()
    follower = Follower.start(home(), run_id)
    journal = journals.begin(home() / "runs", run_id)
    print(run_id, follower.pid, flush=True)
    journals.observe(journal)
    recorded = 0
    for count in itertools.chain([steps], map(int, sys.stdin)):
        for first in range(recorded, recorded + count, 10):
            journals.step(journal, first, 10)
        recorded += count
    if end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    journals.phases(journal)
    finish(journals.end(journal, "failed", ERROR) if end == "raise" else journals.end(journal))
    began = time.monotonic()
    delivery = follower.wait(wait_s, say=lambda text: None)  # nor on stderr, on a busy machine
    waited = time.monotonic() - began
    print(json.dumps({**dataclasses.asdict(delivery), "waited_s": waited}), flush=True)
    return 0 if delivery.complete else 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
