"""Command lines of scripts/run.py, each in a forked child: real processes, and torch imported once.

``CommandLines`` is what tests use, as ``shared()``. The process behind it is this file, started as a script.
It reads requests from stdin, one JSON object a line: ``words`` (of the command line), ``folder`` (to work in)
and ``environment``, and answers each with ``{code, stdout, stderr}``; a code below 0 is the signal that ended
it.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "run.py"

PATIENCE_S = 120
IMPORTED = (
    "dpexp.engine.dry_run",
    "dpexp.report.render.terminal",
    "numpy",
    "torch._dynamo",  # by the first optimizer
    "torch.distributed.launcher.api",
)
"""What most command lines would import."""


class Said(NamedTuple):
    """How a command line ended."""

    code: int
    stdout: str
    stderr: str


class CommandLines:
    """A process that runs command lines in children of its own; ``close`` it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "400"},
        )

    def run(self, words: list[str], folder: Path, **environment: str) -> Said:
        """Run one command line in a folder."""
        request = {"words": words, "folder": str(folder), "environment": environment}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        said = Said(**json.loads(self.process.stdout.readline()))
        assert said.code != -signal.SIGALRM, f"still running after {PATIENCE_S} s: {said}"
        return said

    def close(self) -> None:
        self.process.communicate(timeout=60)


@cache
def shared() -> CommandLines:
    """The one of this process, ended with it."""
    lines = CommandLines()
    atexit.register(lines.close)
    return lines


# --- the process ----------------------------------------------------------------------------------


def script() -> ModuleType:
    """scripts/run.py, imported as the module that it is when it isn't started."""
    found = importlib.util.spec_from_file_location("run_script", SCRIPT)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def in_child(module: ModuleType, request: dict[str, Any]) -> dict[str, Any]:
    """The exit code, stdout and stderr of one command line, in a process of its own."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        child = os.fork()
        if child == 0:
            os.dup2(stdout.fileno(), 1)
            os.dup2(stderr.fileno(), 2)
            begin(request)
            exited(module)
        _, status = os.waitpid(child, 0)
        told: dict[str, Any] = {"code": os.waitstatus_to_exitcode(status)}
        for name, stream in (("stdout", stdout), ("stderr", stderr)):
            stream.seek(0)
            told[name] = stream.read().decode(errors="replace")
        return told


def begin(request: dict[str, Any]) -> None:
    """Be the process that the request describes: nothing on stdin, and ended when its time is up."""
    signal.alarm(PATIENCE_S)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ |= request["environment"]
    os.chdir(request["folder"])
    sys.argv = ["run.py", *request["words"]]


def exited(module: ModuleType) -> None:
    """What the interpreter does with a script: run it, flush, and exit with its code."""
    code = 0
    try:
        module.cli.main(module.app)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    module = script()
    for name in IMPORTED:
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(in_child(module, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
