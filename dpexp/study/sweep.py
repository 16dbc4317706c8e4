"""Sweep: every cell of an experiment, each run in a process of its own, one after the other.

::

    round 1    single    whole-2   whole-8         each round runs every cell once and begins with the next
    round 2    whole-2   whole-8   single          one, so that a drift of the machine affects all cells
    round 3    whole-8   single    whole-2

The sweep is a run too, the parent of its runs, in MLflow as on disk: its runs are found by its id. Nothing
else of dpexp works during a run; MLflow gets everything after the last one.

Tasks that each run one cell make one sweep together: its id follows from the experiment and its cells.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dpexp.config import names
from dpexp.config.errors import ConfigError, be, did_you_mean, plural, text_of
from dpexp.config.process import home
from dpexp.config.run_config import config_digest
from dpexp.engine.facts import environment
from dpexp.record.files import JournalError
from dpexp.record.journal import RECORD, SWEEP_STRATEGY, Journal, new_run_id, now
from dpexp.record.record import Record, Row, finish
from dpexp.record.runs import PARENT, folders, summaries
from dpexp.report.commands import command_of
from dpexp.study.child_run import run_in_child
from dpexp.study.experiment import Experiment
from dpexp.study.records import PlannedRun, machine_kind, speed_ups
from dpexp.study.reproduce import changed_files


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


def plan_runs(experiment: Experiment, only: str = "") -> list[PlannedRun]:
    """Every run in the order of execution, or those of ``only`` one cell: its number from 0, or its name.

    Raises ConfigError for a cell that there is not.
    """
    cells = [*experiment.runs] if not only else [_cell(experiment, only)]
    rounds = (
        cells[number % len(cells) :] + cells[: number % len(cells)] for number in range(experiment.repeats)
    )
    return [PlannedRun(cell, number) for number, order in enumerate(rounds, start=1) for cell in order]


def _cell(experiment: Experiment, only: str) -> str:
    cells = [*experiment.runs]
    if only in cells:
        return only
    if only.isdecimal() and int(only) < len(cells):
        return cells[int(only)]
    known = ", ".join(f"{number} {cell}" for number, cell in enumerate(cells))
    raise ConfigError(f"--only {only}: there is no such cell; there are {known}{did_you_mean(only, cells)}")


class Sweep:
    """A sweep of one experiment; ``folder`` is that of its run.

    One that ``is_shared`` is made by several tasks side by side: none of them writes the sweep's own Record
    but the first.
    """

    def __init__(self, experiment: Experiment, folder: Path, *, is_shared: bool = False) -> None:
        self.experiment = experiment
        self.folder = folder
        self.is_shared = is_shared

    @classmethod
    def new(cls, experiment: Experiment) -> Sweep:
        """A sweep that has not begun; nothing is written yet."""
        return cls(experiment, home() / "runs" / new_run_id())

    @classmethod
    def shared(cls, experiment: Experiment) -> Sweep:
        """The sweep of all tasks with this experiment and these cells, begun or not."""
        cells = {cell: run.to_dict() for cell, run in experiment.runs.items()}
        run_id = config_digest({"sweep": [experiment.name, experiment.title, cells]})[: len(new_run_id())]
        return cls(experiment, home() / "runs" / run_id, is_shared=True)

    @classmethod
    def latest(cls, experiment: Experiment) -> Sweep | None:
        """The newest sweep of this experiment on this disk, finished or not."""
        for summary in summaries(home() / "runs"):
            found = (summary.strategy, summary.experiment, summary.name)
            if found == (SWEEP_STRATEGY, experiment.name, name_of(experiment)):
                return cls(experiment, home() / "runs" / summary.run_id)
        return None

    @property
    def records(self) -> dict[str, Record]:
        """{name: Record} of its runs that are on this disk."""
        return runs_of(self.folder)

    def missing(self, planned: list[PlannedRun]) -> list[PlannedRun]:
        """The runs that have not finished.

        Raises ConfigError if a cell of one that has, or a file that it names, has changed since.
        """
        records = self.records
        return [run for run in planned if not self._has_finished(run, records.get(run.name))]

    def _has_finished(self, planned: PlannedRun, record: Record | None) -> bool:
        if record is None:
            return False
        if changed := self.experiment.changed_fields(planned.cell, record.config):
            since = f"cell '{planned.cell}' has changed since that sweep ({', '.join(changed)})"
            raise ConfigError(f"{since}: sweep without --resume")
        if files := changed_files(record, record.config):
            raise ConfigError(f"cell '{planned.cell}': {files[0]}; or sweep without --resume")
        return record.status == "finished"

    def run(
        self, planned: list[PlannedRun], report: Callable[[CompletedRun], None], *, track: bool = True
    ) -> list[CompletedRun]:
        """Run one after the other and report each; ``track`` is for later deliveries.

        The sweep's journal is closed however the sweep ends (``parent``).
        """
        completed: list[CompletedRun] = []

        def run_each() -> None:
            for run in planned:
                completed.append(self._run_cell(run))
                report(completed[-1])

        if self.is_shared:
            make_parent(self.folder, self.experiment, track=track)
            run_each()
            return completed
        with parent_journal(self.folder, self.experiment, track=track) as journal:
            run_each()
            records = self.records
            finished = sum(record.status == "finished" for record in records.values())
            journal.set({"summary.done": finished, "summary.failed": len(records) - finished})
            journal.set({"summary.speed_ups": speed_ups(records)})
        return completed

    def _run_cell(self, planned: PlannedRun) -> CompletedRun:
        config = replace(
            self.experiment.runs[planned.cell],
            experiment=self.experiment.name,
            run_name=planned.name,
            track=False,
        )
        clock = time.perf_counter()
        child = run_in_child(config.to_dict(), {PARENT: self.folder.name})
        # one that died before it could print its Record has left its journal
        record = child.record or self.records.get(planned.name)
        return CompletedRun(planned, record, time.perf_counter() - clock, child.error)

    @property
    def has_finished(self) -> bool:
        """Whether the sweep says so itself: one that was killed has no end, and one of tasks no summary."""
        record = Record.load(self.folder)
        return record.status == "finished" and "done" in record.summary

    def run_folders(self) -> list[Path]:
        """The folder of the sweep, then those of its runs that have ended."""
        ended = (record.run_id for record in self.records.values() if record.status != "running")
        return [self.folder, *map(self.folder.with_name, ended)]

    def publish(self) -> Path:
        """Make this sweep's Records the committed result for its kind of machine; returns their folder.

        Raises ConfigError if a run is missing or did not finish.
        """
        planned = plan_runs(self.experiment)
        if missing := self.missing(planned):
            shown = ", ".join(run.name for run in missing[:5])
            what = f"{plural(len(missing), 'run')} {be(len(missing))} missing or did not finish"
            raise ConfigError(f"{what} ({shown} …): --resume runs them")
        records = self.records
        target = self.experiment.records / machine_kind(records)
        target.mkdir(parents=True, exist_ok=True)
        for cell in self.experiment.runs:
            for before in target.glob(f"{cell}.r*.json"):
                before.unlink()
        for run in planned:
            recorded = self.folder.with_name(records[run.name].run_id) / RECORD
            shutil.copyfile(recorded, target / f"{run.name}.json")
        return target


def command_line(experiment: Experiment, cell: str) -> str:
    """The command that runs a cell by itself, for ``--dry-run``."""
    return command_of(Record(config=experiment.runs[cell].to_dict()))


def name_of(experiment: Experiment) -> str:
    """The name of the experiment's sweeps."""
    return names.fitted(f"sweep of {experiment.title}", SWEEP_STRATEGY)


def runs_of(sweep: Path) -> dict[str, Record]:
    """{name: Record} of a sweep's runs here: of several of one name the finished one, else the last."""
    found: dict[str, Record] = {}
    for folder in folders(sweep.parent):
        with suppress(JournalError):  # of a run that `runs.py list` names
            record = Record.load(folder)
            if record.parent == sweep.name:
                found[record.name] = max(record, found.get(record.name, record), key=_rank)
    return found


def _rank(record: Record) -> tuple[bool, str]:
    return record.status == "finished", record.started


@contextmanager
def parent_journal(folder: Path, experiment: Experiment, *, track: bool) -> Iterator[Journal]:
    """The sweep's journal, new or reopened, until the sweep ends; nobody else can write it meanwhile.

    ``track`` says whether the sweep and its runs may be delivered. Raises JournalError.
    """
    with Journal.reopen(folder) if folder.exists() else _new(folder, experiment) as journal:
        journal.set({"status": "running", "ended": None, "error": None, "config.track": track})
        journal.flush()
        end: Row = {"status": "killed"}
        try:
            yield journal
            end = {"status": "finished"}
        except Exception as error:
            end = {"status": "failed", "error": {"type": type(error).__name__, "message": text_of(error)}}
            raise
        finally:
            journal.set({"ended": now(), **end})
    finish(journal.path)


def make_parent(folder: Path, experiment: Experiment, *, track: bool) -> None:
    """Write the sweep's Record, unless another task of the same sweep has made its folder."""
    try:
        with _new(folder, experiment) as journal:
            journal.set({"status": "finished", "ended": now(), "config.track": track})
    except JournalError:
        if not folder.exists():
            raise
    else:
        finish(journal.path)


def _new(folder: Path, experiment: Experiment) -> Journal:
    config = {
        "question": experiment.question,
        "cells": list(experiment.runs),
        "repeats": experiment.repeats,
    }
    facts = {"config": config, "environment": environment()}
    journal = Journal(folder.parent, folder.name)
    journal.set(facts, name=name_of(experiment), experiment=experiment.name, strategy=SWEEP_STRATEGY)
    journal.flush()
    return journal
