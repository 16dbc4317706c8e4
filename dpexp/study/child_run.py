"""A run in a process of its own: what a sweep and a reproduction start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from dpexp.config.child_processes import python_path
from dpexp.config.home import ROOT
from dpexp.record import Row

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
    sys.exit(f"error: {outcome.error}")
"""
"""What the child runs. It uses names that every version of dpexp has: ``reproduce --exact`` runs old ones."""


def run_in_child(
    config: Row, environ: Mapping[str, str], root: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run the config with the ``dpexp`` in ``root``; stdout is the Record as JSON, where there is one.

    A run that failed, or was refused, ends with a code other than 0 and its reason on stderr's last line.
    """
    return subprocess.run(
        [sys.executable, "-c", CODE],
        input=json.dumps(config),
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": python_path(root)} | dict(environ),
        check=False,
    )
