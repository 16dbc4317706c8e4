"""Sweep: every cell of an experiment, each run in a process of its own, one after the other.

::

    round 1    whole-8   single   whole-2          each round holds every cell once, in an order of its own,
    round 2    single    whole-2  whole-8          so that what drifts on the machine meets all cells alike
    round 3    whole-2   whole-8  single

The sweep is a run too: its journal is the parent of its runs' journals, in MLflow as on the disk, and
``runs/<sweep>/records/`` holds the Record of every slot. Nothing else of dpexp works while a run is
measured; MLflow gets everything when the last run is over.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dpexp.config import ConfigError, RunConfig, home
from dpexp.engine.environment import environment
from dpexp.record import (
    RECORD,
    Journal,
    Record,
    finish,
    folders,
    load,
    new_run_id,
    now,
    summaries,
    write_atomically,
)
from dpexp.run import PARENT
from dpexp.study.child_run import run_in_child
from dpexp.study.experiment import (
    RECORDS,
    SUMS,
    SWEEP,
    Experiment,
    Program,
    differences,
    filed,
    is_reference,
    read,
    slot,
    sums,
)

STRATEGY = "sweep"


@dataclass(frozen=True)
class Slot:
    """One run that a sweep is to make."""

    cell: str
    round: int

    @property
    def name(self) -> str:
        return slot(self.cell, self.round)


@dataclass(frozen=True)
class Done:
    """A slot that was run: its Record, None where the process left none, and what it said of an error."""

    slot: Slot
    record: Record | None
    wall_s: float
    error: str = ""

    @property
    def is_well(self) -> bool:
        return self.record is not None and self.record.status == "finished"


def plan(experiment: Experiment, only: str = "", seed: int = 0) -> list[Slot]:
    """Every slot in the order in which it is to run: rounds, each in an order of its own, from the seed.

    ``only`` leaves out the cells that the pattern does not match; the single device stays.
    Raises ConfigError for a pattern that matches none.
    """
    cells = list(experiment.runs)
    if only:
        chosen = set(experiment.matching(only))
        cells = [cell for cell in cells if cell in chosen or is_reference(experiment.runs[cell])]
    slots = []
    for number in range(1, experiment.repeats + 1):
        order = list(cells)
        random.Random(f"{experiment.name} {seed} {number}").shuffle(order)
        slots += [Slot(cell, number) for cell in order]
    return slots


class Sweep:
    """A sweep of one experiment; ``folder`` is that of its own run, ``records`` where its Records lie."""

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self.experiment = experiment
        self.folder = folder
        self.records = folder / RECORDS

    @classmethod
    def latest(cls, experiment: Experiment) -> Sweep | None:
        """The newest sweep of this experiment on this disk, over or not."""
        for head in summaries(home() / "runs"):
            if head.strategy == STRATEGY and head.experiment == experiment.name:
                return cls(experiment, home() / "runs" / head.run_id)
        return None

    def missing(self, slots: list[Slot]) -> list[Slot]:
        """The slots without a Record that finished. Raises ConfigError where RUNS has changed since."""
        return [each for each in slots if not self._has(each)]

    def _has(self, wanted: Slot) -> bool:
        path = self.records / f"{wanted.name}.json"
        if not path.is_file():
            return False
        record, run = read(path), self.experiment.runs[wanted.cell]
        if isinstance(run, RunConfig) and (changed := differences(run, record.config)):
            raise ConfigError(
                f"cell '{wanted.cell}' has changed since that sweep ({', '.join(changed)}): sweep without "
                "--resume"
            )
        return record.status == "finished"

    def run(self, slots: list[Slot], tell: Callable[[Done], None]) -> list[Done]:
        """Run the slots in order, tell of each, and close the sweep's own journal however it ends."""
        done: list[Done] = []
        with self._journal() as journal:
            self.records.mkdir(exist_ok=True)
            for each in slots:
                result = self._run(each)
                done.append(result)
                journal.set(
                    {
                        f"summary.wall_s.{each.name}": round(result.wall_s, 3),
                        "summary.done": sum(one.is_well for one in done),
                        "summary.failed": sum(not one.is_well for one in done),
                    }
                )
                journal.flush()
                tell(result)
        return done

    @contextmanager
    def _journal(self) -> Iterator[Journal]:
        """The sweep's own journal, new or gone on with; the Record of the sweep is written at the end."""
        with Journal.reopen(self.folder) if self.folder.exists() else self._new() as journal:
            journal.set(status="running", ended=None)
            journal.flush()
            status = "killed"
            try:
                yield journal
                status = "finished"
            finally:
                journal.set(status=status, ended=now())
        write_atomically(self.records / SWEEP, finish(self.folder / "journal.jsonl").to_json().encode())

    def _new(self) -> Journal:
        journal = Journal(self.folder.parent, self.folder.name)
        journal.set(
            name=f"sweep of {self.experiment.name}",
            experiment=self.experiment.name,
            strategy=STRATEGY,
            config={
                "question": self.experiment.question,
                "cells": list(self.experiment.runs),
                "repeats": self.experiment.repeats,
            },
            environment=environment(),
        )
        return journal

    # --- one slot ---

    def _run(self, each: Slot) -> Done:
        """Run one slot in a process of its own; its Record is kept, whatever became of it."""
        started = time.time()
        clock = time.perf_counter()
        process = self._start(each)
        wall_s = time.perf_counter() - clock
        record = _printed(process.stdout) or self._left_behind(each, started)
        if record is not None:
            write_atomically(self.records / f"{each.name}.json", record.to_json().encode())
        error = process.stderr.strip().splitlines()[-1:] if process.returncode else []
        return Done(each, record, wall_s, error[0] if error else "")

    def _start(self, each: Slot) -> subprocess.CompletedProcess[str]:
        run, parent = self.experiment.runs[each.cell], self.folder.name
        if isinstance(run, RunConfig):
            return run_in_child(filed(run, self.experiment.name, each.name).to_dict(), {PARENT: parent})
        program = [sys.executable, str(self.experiment.folder / run.file), *run.words]
        environ = os.environ | {PARENT: parent}
        return subprocess.run(program, capture_output=True, text=True, env=environ, check=False)

    def _left_behind(self, each: Slot, started: float) -> Record | None:
        """The Record of a run that died before it could print it: its journal knows."""
        for folder in folders(self.folder.parent):
            if folder.stat().st_mtime >= started - 1 and folder != self.folder:
                record = load(folder)
                if (record.parent, record.name) == (self.folder.name, each.name):
                    return record
        return None

    # --- afterwards ---

    def runs(self) -> list[Path]:
        """The folders of the sweep's runs that are on this disk, its own first."""
        there = [self.folder]
        for path in sorted(self.records.glob("*.r*.json")):
            folder = self.folder.parent / read(path).run_id
            there += [folder] if (folder / RECORD).exists() else []
        return there

    def publish(self) -> Path:
        """Make this sweep's Records the committed result for its kind of machine; returns their folder.

        Raises ConfigError where a cell lacks a round, or a run did not finish.
        """
        lacking = self.missing(plan(self.experiment))
        if lacking:
            names = ", ".join(each.name for each in lacking[:5])
            raise ConfigError(
                f"{len(lacking)} runs are missing or did not finish ({names} …): --resume runs them"
            )
        target = self.experiment.folder / RECORDS / self.kind()
        if target.exists():
            shutil.rmtree(target)
        target.mkdir(parents=True)
        for each in plan(self.experiment):
            shutil.copyfile(self.records / f"{each.name}.json", target / f"{each.name}.json")
        shutil.copyfile(self.records / SWEEP, target / SWEEP)
        write_atomically(target / SUMS, sums(target).encode())
        return target

    def kind(self) -> str:
        """``cpu``, or the accelerator's name as a folder's: the kind of machine that the runs used."""
        for path in sorted(self.records.glob("*.r*.json")):
            record = read(path)
            chips = record.environment.get("accelerators") or []
            if chips and record.execution == "real" and any("cuda" in d for d in record.devices["used"]):
                return str(chips[0]["name"]).lower().replace(" ", "-")
        return "cpu"


def new(experiment: Experiment) -> Sweep:
    """A sweep that has not begun; nothing is written yet."""
    return Sweep(experiment, home() / "runs" / new_run_id())


def _printed(text: str) -> Record | None:
    """The Record that a process printed with --json; None where it printed none."""
    try:
        data = json.loads(text)
    except ValueError:
        return None
    return Record.from_dict(data) if isinstance(data, dict) and "run_id" in data else None


def command(run: RunConfig | Program) -> str:
    """What a cell runs, in one line, for ``--dry-run``."""
    if isinstance(run, Program):
        return " ".join(["python", run.file, *run.words])
    usual = RunConfig(run.strategy).to_dict()
    words = [f"{key}={value}" for key, value in run.to_dict().items() if value != usual[key]]
    return " ".join([run.strategy, *words])
