"""Process end: what a model leaves behind does not keep this process from ending.

Python waits for every thread that is not a daemon, and a rank waits for ever in a model that starts one.
"""

import atexit
import os
import sys
import threading
import time
from typing import NoReturn

from dpexp.config.printable import printable

GRACE_S = 10.0
"""Time in which threads end after the run, on which nothing of the run depends any more."""


def end_despite_threads(code: int) -> None:
    """Called last: end this process with the exit code, and a message, where other threads still run then."""
    if _others():
        threading.Thread(target=_end_late, args=(code,), daemon=True, name="dpexp end").start()


def end_rank(code: int) -> NoReturn:
    """End the process of a rank as the interpreter does, but free nothing.

    A gloo thread of a process group that failed, and was not destroyed, aborts an interpreter that is ending
    («terminate called without an active exception»).
    """
    end_despite_threads(code)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, and ends those of thread pools
    atexit._run_exitfuncs()
    _flush_and_exit(code)


def _end_late(code: int) -> None:
    time.sleep(GRACE_S)
    if others := _others():
        names = ", ".join(thread.name for thread in others)
        what = f"warning: the run has left threads that do not end ({names}): the process ends without them"
        is_relayed = os.environ.get("LOCAL_RANK", "0") != "0"  # the launcher shows the stdout of these ranks
        print(printable(what), file=sys.stdout if is_relayed else sys.stderr, flush=True)
        _flush_and_exit(code)


def _others() -> list[threading.Thread]:
    """Threads for which Python waits."""
    main = threading.main_thread()
    return [thread for thread in threading.enumerate() if not thread.daemon and thread is not main]


def _flush_and_exit(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # its reader has gone, or it is closed
            code = code or 1
    os._exit(code)
