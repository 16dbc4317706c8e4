"""Process end: how a rank ends its process."""

import atexit
import os
import sys
from typing import NoReturn


def end_rank(code: int) -> NoReturn:
    """End the process of a rank as the interpreter does, but free nothing and wait for no thread.

    A gloo thread of a process group aborts an interpreter that is ending («terminate called without an active
    exception»).
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # its reader has gone, or it is closed
            code = code or 1
    os._exit(code)
