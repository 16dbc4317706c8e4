"""Sweep: every cell of a plan, each run in a process of its own, one after the other.

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
from dataclasses import dataclass
from pathlib import Path

from dpexp.config import names
from dpexp.config.errors import ConfigError, text_of
from dpexp.config.process import home
from dpexp.config.words import be, plural
from dpexp.engine.facts import environment
from dpexp.record.files import JournalError
from dpexp.record.fold import finish, load_record
from dpexp.record.journal import SWEEP_STRATEGY, Journal, new_run_id, now
from dpexp.record.record import Record, Row
from dpexp.record.runs import PARENT, folders, summaries
from dpexp.study.child_run import run_in_child
from dpexp.study.records import Plan, PlannedRun, changed_fields, machine_kind, speed_ups, write_runs
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
        """Whether the run left a Record of status ``finished``."""
        return self.record is not None and self.record.status == "finished"


@dataclass(frozen=True)
class Sweep:
    """A sweep of a plan; ``folder`` is that of its run."""

    plan: Plan
    folder: Path

    @classmethod
    def new(cls, plan: Plan) -> Sweep:
        """A sweep that has not begun; nothing is written yet."""
        return cls(plan, home() / "runs" / new_run_id())

    @classmethod
    def latest(cls, plan: Plan) -> Sweep | None:
        """The newest sweep of this plan on this disk, finished or not."""
        for summary in summaries(home() / "runs"):
            if (summary.strategy, summary.experiment) == (SWEEP_STRATEGY, plan.name):
                folder = home() / "runs" / summary.run_id
                if load_record(folder).config.get("title") == plan.title:
                    return cls(plan, folder)
        return None

    @property
    def records(self) -> dict[str, Record]:
        """{name: Record} of its runs on this disk: of several of one name the finished one, else the last."""
        by_name: dict[str, Record] = {}
        for folder in folders(self.folder.parent):
            with suppress(JournalError):  # of a run that `runs.py list` names
                record = load_record(folder)
                if record.parent == self.folder.name:
                    by_name[record.name] = max(record, by_name.get(record.name, record), key=_rank)
        return by_name

    def missing(self) -> list[PlannedRun]:
        """The runs that have not finished, in the order of execution.

        Raises ConfigError if a cell of one that has, or a file that it names, has changed since.
        """
        records = self.records
        return [run for run in self.plan.order if not self._has_finished(run, records.get(run.name))]

    def _has_finished(self, planned: PlannedRun, record: Record | None) -> bool:
        if record is None:
            return False
        if changed := changed_fields(self.plan.runs[planned.cell], record.config):
            since = f"cell '{planned.cell}' has changed since that sweep ({', '.join(changed)})"
            raise ConfigError(f"{since}: sweep without --resume")
        if files := changed_files(record):
            raise ConfigError(f"cell '{planned.cell}': {files[0]}; or sweep without --resume")
        return record.status == "finished"

    def run(
        self, planned: list[PlannedRun], report: Callable[[CompletedRun], None], *, track: bool = True
    ) -> list[CompletedRun]:
        """Run one after the other and report each; ``track`` is for later deliveries.

        The sweep's journal is closed however the sweep ends.
        """
        completed: list[CompletedRun] = []
        with self._journal(track) as journal:
            for run in planned:
                completed.append(self._run_cell(run))
                report(completed[-1])
            records = self.records
            finished = sum(record.status == "finished" for record in records.values())
            journal.set({"summary.done": finished, "summary.failed": len(records) - finished})
            journal.set({"summary.speed_ups": speed_ups(records)})
        return completed

    def _run_cell(self, planned: PlannedRun) -> CompletedRun:
        filed = {"experiment": self.plan.name, "run_name": planned.name, "track": False}
        config = self.plan.runs[planned.cell].to_dict() | filed
        clock = time.perf_counter()
        child = run_in_child(config, {PARENT: self.folder.name})
        # one that died before it could print its Record has left its journal
        record = child.record or self.records.get(planned.name)
        return CompletedRun(planned, record, time.perf_counter() - clock, child.error)

    @contextmanager
    def _journal(self, track: bool) -> Iterator[Journal]:
        """The sweep's journal, new or reopened, until the sweep ends; nobody else can write it meanwhile.

        ``track`` says whether the sweep and its runs may be delivered. Raises JournalError.
        """
        with Journal.reopen(self.folder) if self.folder.exists() else self._begin() as journal:
            journal.set({"status": "running", "ended": None, "error": None, "config.track": track})
            journal.flush()
            end: Row = {"status": "killed"}
            try:
                yield journal
                end = {"status": "finished"}
            except Exception as error:
                message = {"type": type(error).__name__, "message": text_of(error)}
                end = {"status": "failed", "error": message}
                raise
            finally:
                journal.set({"ended": now(), **end})
        finish(journal.path)

    def _begin(self) -> Journal:
        plan = self.plan
        config = {"title": plan.title, "cells": list(plan.runs), "repeats": plan.repeats}
        journal = Journal(self.folder.parent, self.folder.name)
        journal.set(
            {"config": config, "environment": environment()},
            name=names.fitted(f"sweep of {plan.title}", SWEEP_STRATEGY),
            experiment=plan.name,
            strategy=SWEEP_STRATEGY,
        )
        return journal

    def run_folders(self) -> list[Path]:
        """The folder of the sweep, then those of its runs that have ended."""
        ended = (record.run_id for record in self.records.values() if record.status != "running")
        return [self.folder, *map(self.folder.with_name, ended)]

    def publish(self, committed: Path) -> Path:
        """Make its Records the committed result for its kind of machine; returns their folder.

        Raises ConfigError if a run is missing or did not finish.
        """
        if missing := self.missing():
            shown = ", ".join(run.name for run in missing[:5])
            what = f"{plural(len(missing), 'run')} {be(len(missing))} missing or did not finish"
            raise ConfigError(f"{what} ({shown} …): --resume runs them")
        records, rounds = self.records, range(1, self.plan.repeats + 1)
        target = committed / machine_kind(records.values())
        runs = {cell: [records[PlannedRun(cell, n).name] for n in rounds] for cell in self.plan.runs}
        write_runs(target, runs)
        return target


def _rank(record: Record) -> tuple[bool, str]:
    return record.status == "finished", record.started
