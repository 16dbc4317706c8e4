"""Child run: a run in a child process, for a sweep or a reproduction."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from dpexp.config.process import c_library, end_with_parent, python_path
from dpexp.record.record import Record, Row
from dpexp.record.redact import redact

CODE = """
import contextlib, json, sys
from dpexp import RunConfig
from dpexp.run import execute
try:
    with contextlib.redirect_stdout(sys.stderr):  # what a model prints
        outcome = execute(RunConfig.from_dict(json.load(sys.stdin)), quiet=True)
except Exception as error:
    sys.exit(f"error: {error}")
if outcome.record is not None:
    print(outcome.record.to_json())
if outcome.error is not None:
    sys.exit(f"error: {type(outcome.error).__name__}: {outcome.error}")
"""
"""What the child runs."""
GRACE_S = 30.0
"""How long a run may take to end after it is told."""


@dataclass(frozen=True)
class ChildRun:
    """A child process that has ended: the Record that it printed, and its error, empty for exit code 0."""

    record: Record | None
    error: str


def run_in_child(config: Row, environ: Mapping[str, str]) -> ChildRun:
    """Run the config with this ``dpexp``, with these environment variables added.

    The working directory may hold another ``dpexp``.
    """
    env = os.environ | {"PYTHONPATH": python_path(), **environ}
    done = run_process([sys.executable, "-P", "-c", CODE], input=json.dumps(config), env=env)
    record = None
    with contextlib.suppress(ValueError):  # it printed something else, or nothing
        record = Record.from_json(done.stdout)
    return ChildRun(record, _error(done))


def run_process(
    command: list[str], *, env: Mapping[str, str], input: str
) -> subprocess.CompletedProcess[str]:
    """Run a process to its end. It is terminated when this one ends, or is interrupted, which then waits."""
    c_library()
    pipe, end = subprocess.PIPE, partial(_end_with, os.getpid())
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env, preexec_fn=end
    ) as process:
        try:
            out, err = process.communicate(input)
        except BaseException:
            _end(process)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _end(process: subprocess.Popen[str]) -> None:
    """Let the run end by itself, with its Record; kill it where that takes too long."""
    process.terminate()
    try:
        process.communicate(timeout=GRACE_S)
    except BaseException as error:
        process.kill()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise


def _end_with(parent: int) -> None:
    end_with_parent(signal.SIGTERM)
    if os.getppid() != parent:  # it ended before the kernel knew
        os._exit(128 + signal.SIGTERM)


def _error(done: subprocess.CompletedProcess[str]) -> str:
    """The signal that killed the process, or the last line of its stderr."""
    if done.returncode < 0:
        return f"killed by {signal.Signals(-done.returncode).name}"
    if done.returncode == 0:
        return ""
    last = redact(done.stderr.strip().rpartition("\n")[2])
    return last.removeprefix("error: ") or f"ended with exit code {done.returncode}"
