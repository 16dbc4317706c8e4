"""The executor of submitit that gives jobs to Slurm, from the ``NAME=VALUE`` parameters of a command line."""

from __future__ import annotations

import shlex
import sys
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpexp.config.errors import ConfigError
from dpexp.config.process import python_path
from dpexp.record.record import Row

if TYPE_CHECKING:
    from submitit import Executor

JOBS = "jobs"
"""The folder of submitit's files in that of a sweep."""
TIME_MIN = 60
"""The time limit of a job, in minutes, unless ``time`` is given."""
LISTS = ("setup", "teardown", "srun_args")
"""Parameters of submitit that are lists: given several times."""
WHOLE = {
    "time": "whole minutes, as time=120",
    "nodes": "a whole number, as nodes=1",
    "ntasks_per_node": "a whole number, as ntasks_per_node=1",
}
"""Parameters with which submitit computes."""


def slurm(folder: Path, options: Sequence[str]) -> Executor:
    """submitit's executor for Slurm with these ``NAME=VALUE`` parameters of its own; nothing is submitted.

    Raises ConfigError where submitit or Slurm is missing, and for a parameter that submitit does not have.
    """
    try:
        from submitit import SlurmExecutor
    except ImportError:
        raise ConfigError("--on slurm needs submitit: pip install 'dpexp[slurm]' or submitit") from None
    parameters = _parameters(options)
    try:
        executor = SlurmExecutor(folder / JOBS, python=python())
        executor.update_parameters(**{"job_name": "dpexp", "time": TIME_MIN, **parameters})
    except (RuntimeError, ValueError) as error:  # no srun here; an unknown parameter
        text = " ".join(str(error).split())
        raise ConfigError(f"--on slurm: {text}") from None
    return executor


def _parameters(options: Sequence[str]) -> Row:
    from submitit.slurm.slurm import _make_sbatch_string

    kinds = typing.get_type_hints(_make_sbatch_string)
    found: Row = {}
    for option in options:
        name, equals, value = option.partition("=")
        name = name.strip().replace("-", "_")
        if not name or not equals:
            raise ConfigError(f"--slurm {option}: write NAME=VALUE, as partition=gpu or time=120")
        if name in WHOLE and not value.isdecimal():
            raise ConfigError(f"--slurm {option}: submitit takes {WHOLE[name]}")
        found[name] = [*found.get(name, []), value] if name in LISTS else _as_kind(value, kinds.get(name))
    return found


def _as_kind(value: str, kind: Any) -> int | bool | str | None:
    """The value as submitit's signature has it; None leaves a flag out."""
    kinds = {kind, *typing.get_args(kind)}
    if int in kinds and value.isdecimal():
        return int(value)
    return {"true": True, "false": None}.get(value, value) if bool in kinds else value


def python() -> str:
    """The command that starts this Python on a node, with this dpexp."""
    return shlex.join(["env", f"PYTHONPATH={python_path()}", sys.executable])
