"""Run Python in a pseudo-terminal, for tests of output that only a terminal gets."""

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios


def in_terminal(code: str, columns: int) -> str:
    """The output of Python code whose stdout and stderr are a terminal with this number of columns."""
    main, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm-256color"}
    for name in ("COLUMNS", "NO_COLOR", "LINES"):
        env.pop(name, None)
    with subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdout=child, stderr=child, stdin=child
    ) as process:
        os.close(child)
        output = b""
        with contextlib.suppress(OSError):  # the terminal closes with the process
            while chunk := os.read(main, 4096):
                output += chunk
    os.close(main)
    assert process.returncode == 0
    return output.decode()
