"""Command lines of scripts/run.py and of other programs, each in a forked child: torch is imported once.

Tests use ``shared()``, a ``CommandLines``. Its process is this file, started as a script. It reads requests
from stdin, one JSON object on each line: ``program`` (a Python file), ``words`` (of the command line),
``folder`` (the working directory) and ``environment``, and answers each with ``{code, stdout, stderr}``; a
negative code is the signal that ended the child.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import json
import os
import runpy
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
PRELOADED = (
    "dpexp.engine.dry_run",
    "dpexp.report.render.terminal",
    "numpy",
    "torch._dynamo",  # by the first optimizer
    "torch.distributed.launcher.api",
)
"""Imported before the fork, because most command lines need them."""


class CommandResult(NamedTuple):
    """The exit code and output of a command line."""

    code: int
    stdout: str
    stderr: str


class CommandLines:
    """A process that runs each command line in a forked child; ``close`` ends it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "400"},
        )

    def run(
        self, words: list[str], folder: Path, *, program: Path = SCRIPT, **environment: str
    ) -> CommandResult:
        """Run one command line in a folder."""
        request = {
            "program": str(program),
            "words": words,
            "folder": str(folder),
            "environment": environment,
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        result = CommandResult(**json.loads(self.process.stdout.readline()))
        assert result.code != -signal.SIGALRM, f"still running after {PATIENCE_S} s: {result}"
        return result

    def close(self) -> None:
        self.process.communicate(timeout=60)


@cache
def shared() -> CommandLines:
    """The CommandLines of this test process; it ends with the process."""
    lines = CommandLines()
    atexit.register(lines.close)
    return lines


# --- the process ----------------------------------------------------------------------------------


def script() -> ModuleType:
    """scripts/run.py, imported as a module."""
    found = importlib.util.spec_from_file_location("run_script", SCRIPT)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def in_child(module: ModuleType, request: dict[str, Any]) -> dict[str, Any]:
    """The exit code, stdout and stderr of one command line, run in a forked child."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        child = os.fork()
        if child == 0:
            os.dup2(stdout.fileno(), 1)
            os.dup2(stderr.fileno(), 2)
            set_up(request)
            run_and_exit(module, request["program"])
        _, status = os.waitpid(child, 0)
        result: dict[str, Any] = {"code": os.waitstatus_to_exitcode(status)}
        for name, stream in (("stdout", stdout), ("stderr", stderr)):
            stream.seek(0)
            result[name] = stream.read().decode(errors="replace")
        return result


def set_up(request: dict[str, Any]) -> None:
    """Set up the child: no stdin, an alarm that ends it, and the environment and folder of the request."""
    signal.alarm(PATIENCE_S)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ |= request["environment"]
    os.chdir(request["folder"])
    sys.argv = [request["program"], *request["words"]]


def run_and_exit(module: ModuleType, program: str) -> None:
    """Run the program, flush its output, and exit with its code, as the interpreter does."""
    code = 0
    try:
        if program == str(SCRIPT):
            module.cli.main(module.app)
        else:
            runpy.run_path(program, run_name="__main__")
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
    for name in PRELOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(in_child(module, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
