"""Orphans: a rank whose launcher is gone ends as one that was told to end.

torchrun's agent ends its ranks when it is interrupted or terminated. Killed outright, by hand or for its
memory, it cannot, and they would train on with nobody to restart them, to hear them, or to end them.
"""

from __future__ import annotations

import os
import signal
import threading
import time

POLL_S = 0.5
GRACE_S = 30.0
"""How long a rank may take to end in order, with a snapshot and its last lines."""
EXIT_CODE = 128 + signal.SIGTERM


def end_with_launcher() -> None:
    """From here on this process ends when its parent does: by SIGTERM, and after ``GRACE_S`` at once."""
    launcher = os.getppid()

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(POLL_S)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os._exit(EXIT_CODE)

    threading.Thread(target=watch, daemon=True, name="launcher").start()
