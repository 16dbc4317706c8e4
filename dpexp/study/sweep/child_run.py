"""Child run: a run in a child process, for a sweep or a reproduction."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpexp.config.process import ROOT, python_path
from dpexp.record.record import Record, Row
from dpexp.record.redact import redact
from dpexp.study.experiment.records import parse_record

CODE = """
import json, sys
from dpexp import RunConfig
from dpexp.run import execute
try:
    outcome = execute(RunConfig.from_dict(json.load(sys.stdin)), quiet=True)
except Exception as error:
    sys.exit(f"error: {error}")
if outcome.record is not None:
    print(outcome.record.to_json())
if outcome.error is not None:
    sys.exit(f"error: {type(outcome.error).__name__}: {outcome.error}")
"""
"""What the child runs. It uses names that every version of dpexp has: ``reproduce --exact`` runs old ones."""


@dataclass(frozen=True)
class ChildRun:
    """A child process that has ended: the Record that it printed, and its error, empty for exit code 0."""

    record: Record | None
    error: str


def run_in_child(config: Row, environ: Mapping[str, str], root: Path = ROOT) -> ChildRun:
    """Run the config with the ``dpexp`` in ``root``; the working directory may hold another one."""
    command = [sys.executable, "-P", "-c", CODE]
    return run_command(command, {"PYTHONPATH": python_path(root), **environ}, json.dumps(config))


def run_command(command: Sequence[str], environ: Mapping[str, str], stdin: str = "") -> ChildRun:
    """Run a command that prints a Record as JSON, with these environment variables added."""
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, env=os.environ | dict(environ), check=False
    )
    record = None
    with contextlib.suppress(ValueError):  # it printed something else, or nothing
        record = parse_record(done.stdout)
    return ChildRun(record, _error(done))


def _error(done: subprocess.CompletedProcess[str]) -> str:
    """The signal that killed the process, or the last line of its stderr."""
    if done.returncode < 0:
        return f"killed by {signal.Signals(-done.returncode).name}"
    if done.returncode == 0:
        return ""
    last = redact(done.stderr.strip().rpartition("\n")[2])
    return last.removeprefix("error: ") or f"ended with exit code {done.returncode}"
