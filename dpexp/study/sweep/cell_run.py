"""One run of a sweep: a cell in a child process, whose Record is kept whether it finished or not."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dpexp.config.run_config import RunConfig
from dpexp.record.journal.durable import make_folder
from dpexp.record.journal.fold import load
from dpexp.record.journal.journal import JOURNAL
from dpexp.record.record import JournalError, Record
from dpexp.record.runs.begin import PARENT
from dpexp.record.runs.index import folders
from dpexp.record.runs.sweep_records import PROGRAMS, write_program, write_record
from dpexp.report.commands import command_of
from dpexp.study.experiment.experiment import Experiment
from dpexp.study.experiment.records import PlannedRun, parse_record
from dpexp.study.sweep.child_run import run_in_child, run_program


@dataclass(frozen=True)
class CompletedRun:
    """A run of a sweep that has ended: its Record, None if the process left none, and its error message."""

    planned: PlannedRun
    record: Record | None
    wall_s: float
    error: str

    @property
    def finished(self) -> bool:
        return self.record is not None and self.record.status == "finished"


def run_cell(
    experiment: Experiment, planned: PlannedRun, sweep: Path, held: Sequence[int] = ()
) -> CompletedRun:
    """Run a cell in a child process, which inherits ``held``, and keep its Record in the sweep's folder."""
    started = time.time()
    clock = time.perf_counter()
    run, environ = experiment.runs[planned.cell], {PARENT: sweep.name}
    if isinstance(run, RunConfig):
        config = replace(run, experiment=experiment.name, run_name=planned.name, track=False)
        child = run_in_child(config.to_dict(), environ, held=held)
        record, error = child.record or _recorded_since(started, planned, sweep), child.error
    else:
        command = [sys.executable, str(experiment.folder / run.file), *run.arguments]
        error = run_program(command, environ, _output(sweep, planned.name), held)
        record = keep_output(sweep, planned.name)
    wall_s = time.perf_counter() - clock
    if record is not None and isinstance(run, RunConfig):
        record = write_record(sweep, planned.name, sweep.with_name(record.run_id) / JOURNAL)
    return CompletedRun(planned, record, wall_s, error)


def keep_output(sweep: Path, name: str) -> Record | None:
    """Keep the Record that a program has printed; None where there is none, or it is not complete.

    The file with the output needs no process to read it: what a program prints stays when the sweep dies.
    """
    try:
        printed = parse_record(_output(sweep, name).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    record = write_program(sweep, name, printed)
    _output(sweep, name).unlink(missing_ok=True)
    return record


def _output(sweep: Path, name: str) -> Path:
    make_folder(sweep / PROGRAMS, exist_ok=True)
    return sweep / PROGRAMS / f"{name}.out"


def _recorded_since(started: float, planned: PlannedRun, sweep: Path) -> Record | None:
    """The Record of a run that died before it could print it, read from its folder."""
    for folder in folders(sweep.parent):
        if folder.stat().st_mtime >= started - 1 and folder != sweep:
            with suppress(JournalError):  # another run's, which `runs.py list` names
                record = load(folder)
                if (record.parent, record.name) == (sweep.name, planned.name):
                    return record
    return None


def command_line(experiment: Experiment, cell: str) -> str:
    """The command that runs a cell by itself, for ``--dry-run``."""
    run = experiment.runs[cell]
    if isinstance(run, RunConfig):
        return command_of(Record(config=run.to_dict()))
    return shlex.join(["python", run.file, *run.arguments])
