"""Command lines: those of ``scripts/`` in this process, and ``python WORDS`` in a forked child of another.

The other is a fork server that has imported torch (``forked_python.py``).
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import io
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from unittest import mock

from dpexp.commands.app import run_app
from helpers.forked_python import run_command

if TYPE_CHECKING:
    from typer import Typer

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = str(ROOT / "scripts" / "run.py")
HELPERS = Path(__file__).parent
ENVIRONMENT = {
    # tests that are the file of a user, and what the developer has set
    "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep),
    "COLUMNS": "400",
    "OMP_NUM_THREADS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
PATIENCE_S = 1000
"""How long to wait for an event: far longer than it takes on a busy machine."""


class Command:
    """``python WORDS`` in a child of the fork server. It has what the tests use of ``subprocess.Popen``."""

    def __init__(self, *words: str, folder: Path = ROOT, stdin: str = "", **environment: str) -> None:
        """In a folder, with the environment of this process and more variables, and a text as stdin."""
        self.args = words
        self._folder = Path(tempfile.mkdtemp(prefix="dpexp-command-"))
        self._files = [self._folder / name for name in ("stdin", "stdout", "stderr")]
        for file, text in zip(self._files, (stdin, "", ""), strict=True):
            file.write_text(text)
        given = (words, str(folder), os.environ | ENVIRONMENT | environment, [*map(str, self._files)])
        self._process = fork_server().Process(target=run_command, args=given)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code; None while it runs, negative for a signal."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def communicate(self, timeout: float = PATIENCE_S) -> tuple[str, str]:
        """Wait until it ends; stdout and stderr. Raises ``subprocess.TimeoutExpired``."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        if self._folder.exists():
            self._output = [file.read_text(errors="replace") for file in self._files]
            shutil.rmtree(self._folder)
        return self._output[1], self._output[2]

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@cache
def fork_server() -> ForkServerContext:
    """The fork server of this test process. It ends with the process, as do commands that still run."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["helpers.preloaded"])
    path = os.pathsep.join((str(ROOT), ENVIRONMENT["PYTHONPATH"]))
    with mock.patch.dict(os.environ, ENVIRONMENT | {"PYTHONPATH": path}):
        forkserver.ensure_running()
    atexit.register(lambda: [each.kill() for each in multiprocessing.active_children()])
    return context


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
    command = Command(*map(str, words), folder=folder, **environment)
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
    command = Command(*args[1:], folder=Path.cwd(), stdin=input, **env)
    out, err = wait(command)
    assert command.returncode is not None
    if not isinstance(stdout, int):
        stdout.write(out.encode())
    return subprocess.CompletedProcess(command.args, command.returncode, out, err)
