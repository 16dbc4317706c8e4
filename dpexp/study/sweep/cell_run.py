"""One run of a sweep: a cell in a child process, whose Record is kept whether it finished or not."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dpexp.config.process import home
from dpexp.config.run_config import RunConfig
from dpexp.record.journal.durable import write_atomically
from dpexp.record.journal.fold import load
from dpexp.record.record import JournalError, Record
from dpexp.record.runs.begin import PARENT
from dpexp.record.runs.index import folders
from dpexp.report.commands import command_of
from dpexp.study.experiment.experiment import RECORDS, Experiment
from dpexp.study.experiment.records import PlannedRun
from dpexp.study.sweep.child_run import ChildRun, run_command, run_in_child


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
    child = _run(experiment, planned, sweep, held)
    wall_s = time.perf_counter() - clock
    record = child.record or _recorded_since(started, planned, sweep)
    if record is not None:
        keep_record(sweep, planned.name, record)
    return CompletedRun(planned, record, wall_s, child.error)


def keep_record(sweep: Path, name: str, record: Record) -> None:
    """Write the Record of a run of this name into the sweep's folder."""
    write_atomically(sweep / RECORDS / f"{name}.json", record.to_json().encode(), private=False)


def _run(experiment: Experiment, planned: PlannedRun, sweep: Path, held: Sequence[int]) -> ChildRun:
    run, environ = experiment.runs[planned.cell], {PARENT: sweep.name}
    if isinstance(run, RunConfig):
        config = replace(run, experiment=experiment.name, run_name=planned.name, track=False)
        return run_in_child(_resumed(config, sweep).to_dict(), environ, held=held)
    command = [sys.executable, str(experiment.folder / run.file), *run.arguments]
    return run_command(command, environ, held=held)


def _resumed(config: RunConfig, sweep: Path) -> RunConfig:
    """The config, which continues the run with a snapshot that an interrupted sweep left of it."""
    options = config.options.rank_options
    if options is None:
        return config
    for snapshots in folders(home() / "snapshots"):
        with suppress(JournalError):
            record = load(sweep.parent / snapshots.name)
            is_it = (record.parent, record.name) == (sweep.name, config.run_name)
            if is_it and record.status in ("killed", "running"):
                return replace(config, options=replace(options, resume=record.run_id))
    return config


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
