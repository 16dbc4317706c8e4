"""Runs command lines of scripts/run.py, each in a forked child: real processes, and torch imported once.

Reads requests from stdin, one JSON object a line: ``words`` (of the command line), ``folder`` (to work in)
and ``environment``. Answers each with ``{code, stdout, stderr}``; a code below 0 is the signal that ended it.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "run.py"


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
    """Be the process that the request describes."""
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
    for name in ("dpexp.preview", "dpexp.report.terminal", "numpy"):
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(in_child(module, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
