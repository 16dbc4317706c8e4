"""Command lines: those of ``scripts/`` in this process, and ``python WORDS`` in a forked child of another.

The other process has imported torch. ``shared()`` is its handle; it is ``forked_python.py``.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import io
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from unittest import mock

from dpexp.commands.app import run_app

if TYPE_CHECKING:
    from typer import Typer

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = str(ROOT / "scripts" / "run.py")
HELPERS = Path(__file__).parent
SERVER = HELPERS / "forked_python.py"
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT / "tests"),  # for tests that are the file of a user
    "COLUMNS": "400",
    "OMP_NUM_THREADS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
PATIENCE_S = 1000
"""How long to wait for an event: far longer than it takes on a busy machine."""


class Command:
    """A command line that was started. It has what the tests use of ``subprocess.Popen``."""

    def __init__(self, lines: CommandLines, number: int, words: tuple[str, ...]) -> None:
        self.args = words
        self.pid = 0
        self.returncode: int | None = None
        self._lines, self._number = lines, number
        self._output = ("", "")
        self.folder = Path(tempfile.mkdtemp(prefix="dpexp-command-"))
        self.stdin: IO[str] | None = None
        for name in ("stdout", "stderr"):
            (self.folder / name).touch()

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        self._lines.read(0)
        return self.returncode

    def communicate(self, timeout: float = PATIENCE_S) -> tuple[str, str]:
        """Close its stdin and wait until it ends; stdout and stderr. Raises ``subprocess.TimeoutExpired``."""
        if self.stdin is not None:
            self.stdin.close()
        deadline = time.monotonic() + timeout
        while self.returncode is None:
            self._lines.read(deadline - time.monotonic())
            if self.returncode is None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(list(self.args), timeout)
        if self.folder.exists():
            paths = (self.folder / "stdout", self.folder / "stderr")
            stdout, stderr = (path.read_text(errors="replace") for path in paths)
            self._output = (stdout, stderr)
            shutil.rmtree(self.folder)
        return self._output

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class CommandLines:
    """A process that runs each command line in a forked child; ``close`` ends it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | ENVIRONMENT,
        )
        self._commands: dict[int, Command] = {}
        self._count = 0
        self._rest = b""

    def start(self, *words: str, folder: Path = ROOT, has_stdin: bool = False, **environment: str) -> Command:
        """Start ``python WORDS`` in a folder, with the environment of this process and more variables."""
        self._count += 1
        command = self._commands[self._count] = Command(self, self._count, words)
        request = {
            "id": self._count,
            "words": words,
            "folder": str(folder),
            "environment": os.environ | ENVIRONMENT | environment,
            "stdin": str(command.folder / "stdin") if has_stdin else os.devnull,
            "stdout": str(command.folder / "stdout"),
            "stderr": str(command.folder / "stderr"),
        }
        if has_stdin:
            os.mkfifo(request["stdin"])
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        if has_stdin:
            command.stdin = open(request["stdin"], "w")  # noqa: SIM115 - returns when the child has opened it
        while not command.pid:
            self.read(PATIENCE_S)
        return command

    def read(self, timeout: float) -> None:
        """Read what the process reports, for which this waits."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], max(0, timeout))
        if not ready:
            return
        received = os.read(self.process.stdout.fileno(), 1 << 16)
        assert received, f"the process of the command lines has ended: exit code {self.process.wait()}"
        *lines, self._rest = (self._rest + received).split(b"\n")
        for report in map(json.loads, lines):
            self._report(**report)

    def _report(self, id: int, pid: int | None = None, code: int | None = None) -> None:
        command = self._commands[id]
        command.pid = pid or command.pid
        if code is not None:
            command.returncode = code
            del self._commands[id]

    def close(self) -> None:
        self.process.communicate(timeout=PATIENCE_S)


def wait(process: Any, timeout: float = PATIENCE_S) -> tuple[str, str]:
    """The output of a process, a Command or a Popen, when it has ended; it is killed after the timeout."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"still running after {timeout} s\n{out[-3000:]}\n{err[-3000:]}") from None
    return out, err


def python(*words: object, folder: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``python WORDS`` in a folder, in a forked process, to its end."""
    command = shared().start(*map(str, words), folder=folder, **environment)
    out, err = wait(command)
    assert command.returncode is not None
    return subprocess.CompletedProcess(command.args, command.returncode, out, err)


def script(
    name: str, *words: object, folder: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """What ``python scripts/NAME WORDS`` does in a folder, in this process: its exit code and its output.

    What it starts, ranks and a follower, are processes of their own.
    """
    app = importlib.import_module(f"dpexp.commands.{Path(name).stem}").app
    argv, streams = [str(ROOT / "scripts" / name), *map(str, words)], []
    handlers = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(folder))
        stack.enter_context(mock.patch.dict(os.environ, ENVIRONMENT | environment))
        stack.enter_context(mock.patch.multiple(sys, argv=argv, path=[*sys.path]))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # MLflow, pydantic and SQLAlchemy warn of each other
        for redirect in (contextlib.redirect_stdout, contextlib.redirect_stderr):
            streams.append(io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True))
            stack.enter_context(redirect(streams[-1]))
        code = exit_code(app)
    for number, handler in handlers:
        signal.signal(number, handler)
    out, err = (stream.buffer.getvalue().decode() for stream in streams)
    return subprocess.CompletedProcess(argv, code, out, err)


def exit_code(app: Typer) -> Any:
    """Run an app to its end."""
    try:
        run_app(app)
    except SystemExit as end:
        return end.code


def run_forked(
    args: Sequence[str],
    *,
    env: Mapping[str, str],
    input: str = "",
    stdout: int | IO[bytes] = subprocess.PIPE,
    **_: object,
) -> subprocess.CompletedProcess[str]:
    """What ``subprocess.run`` of ``python WORDS`` does for a text as stdin, in a forked process."""
    assert args[0] == sys.executable
    command = shared().start(*args[1:], folder=Path.cwd(), has_stdin=True, **env)
    assert command.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it reads no stdin
        command.stdin.write(input)
        command.stdin.close()
    out, err = wait(command)
    assert command.returncode is not None
    if not isinstance(stdout, int):
        stdout.write(out.encode())
    return subprocess.CompletedProcess(command.args, command.returncode, out, err)


@cache
def shared() -> CommandLines:
    """The CommandLines of this test process; it ends with the process."""
    lines = CommandLines()
    atexit.register(lines.close)
    return lines
