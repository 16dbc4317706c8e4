"""Sweep: every cell of an experiment, each run in a process of its own, one after the other.

::

    round 1    single    whole-2   whole-8         each round runs every cell once and begins with the next
    round 2    whole-2   whole-8   single          one, so that a drift of the machine affects all cells
    round 3    whole-8   single    whole-2

The sweep is a run too, the parent of its runs, in MLflow as on disk: its runs are found by its id. Nothing
else of dpexp works during a run; MLflow gets everything after the last one. Its status says how it ended::

    every run was made             finished    whether the runs finished or not
    Ctrl-C, SIGTERM                killed
    an error, as of a full disk    failed      with the error
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from dpexp.config import names
from dpexp.config.errors import ConfigError, be, plural, text_of
from dpexp.config.process import home
from dpexp.engine.facts import environment
from dpexp.record.files import JournalError
from dpexp.record.journal import SWEEP_STRATEGY, Journal, new_run_id, now
from dpexp.record.record import Record, Row, finish
from dpexp.record.runs import PARENT, folders, summaries
from dpexp.report.commands import command_of
from dpexp.study.child_run import run_in_child
from dpexp.study.experiment import Experiment
from dpexp.study.records import PlannedRun, machine_kind, speed_ups, write_runs
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


def plan_runs(experiment: Experiment) -> list[PlannedRun]:
    """Every run in the order of execution."""
    cells = [*experiment.runs]
    rounds = (
        cells[number % len(cells) :] + cells[: number % len(cells)] for number in range(experiment.repeats)
    )
    return [PlannedRun(cell, number) for number, order in enumerate(rounds, start=1) for cell in order]


class Sweep:
    """A sweep of one experiment; ``folder`` is that of its run."""

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self.experiment = experiment
        self.folder = folder

    @classmethod
    def new(cls, experiment: Experiment) -> Sweep:
        """A sweep that has not begun; nothing is written yet."""
        return cls(experiment, home() / "runs" / new_run_id())

    @classmethod
    def latest(cls, experiment: Experiment) -> Sweep | None:
        """The newest sweep of this experiment on this disk, finished or not."""
        for summary in summaries(home() / "runs"):
            if (summary.strategy, summary.experiment) == (SWEEP_STRATEGY, experiment.name):
                folder = home() / "runs" / summary.run_id
                if Record.load(folder).config.get("title") == experiment.title:
                    return cls(experiment, folder)
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

        The sweep's journal is closed however the sweep ends.
        """
        completed: list[CompletedRun] = []
        with parent_journal(self.folder, self.experiment, track=track) as journal:
            for run in planned:
                completed.append(self._run_cell(run))
                report(completed[-1])
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

    def has_ended(self, *, track: bool) -> bool:
        """Whether its Record has an end, which a killed one lacks, and is delivered as ``track`` says."""
        record = Record.load(self.folder)
        return record.status == "finished" and record.config["track"] == track

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
        rounds = range(1, self.experiment.repeats + 1)
        cells = self.experiment.runs
        write_runs(target, {cell: [records[PlannedRun(cell, n).name] for n in rounds] for cell in cells})
        return target


def command_line(experiment: Experiment, cell: str) -> str:
    """The command that runs a cell by itself, for ``--dry-run``."""
    return command_of(Record(config=experiment.runs[cell].to_dict()))


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


def _new(folder: Path, experiment: Experiment) -> Journal:
    config = {
        "title": experiment.title,
        "question": experiment.question,
        "cells": list(experiment.runs),
        "repeats": experiment.repeats,
    }
    facts = {"config": config, "environment": environment()}
    journal = Journal(folder.parent, folder.name)
    name = names.fitted(f"sweep of {experiment.title}", SWEEP_STRATEGY)
    journal.set(facts, name=name, experiment=experiment.name, strategy=SWEEP_STRATEGY)
    journal.flush()
    return journal
