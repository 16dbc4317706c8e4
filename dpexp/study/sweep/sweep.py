"""Sweep: every cell of an experiment, each run in a process of its own, one after the other.

::

    round 1    whole-8   single   whole-2          each round runs every cell once, in its own order,
    round 2    single    whole-2  whole-8          so that a drift of the machine affects all cells alike
    round 3    whole-2   whole-8  single           (``order``)

With a limit the sweep ends after the first round, from the experiment's number of rounds on, in which every
claim about time is decided, or after the limit; the intervals are then wider (``claims.interval``).

The sweep is a run too: its journal is the parent of its runs' journals, in MLflow as on disk, and
``runs/<sweep>/records/`` holds the Record of every run. Nothing else of dpexp works during a run; MLflow
gets everything after the last one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path

from dpexp.config.errors import ConfigError
from dpexp.config.process import home
from dpexp.config.ranges import be, plural
from dpexp.record.journal.durable import make_folder, write_atomically
from dpexp.record.journal.fold import load
from dpexp.record.journal.journal import RECORD, SWEEP_STRATEGY
from dpexp.record.record import new_run_id
from dpexp.record.runs import sweep_records
from dpexp.record.runs.index import summaries
from dpexp.study.experiment.claims import judge
from dpexp.study.experiment.experiment import ClaimOutcome, Experiment
from dpexp.study.experiment.records import (
    CHECKSUMS,
    SWEEP,
    PlannedRun,
    checksums,
    measured_runs,
    read_record,
    run_records,
    speed_ups,
)
from dpexp.study.reproduce.foreign_records import changed_files
from dpexp.study.sweep.cell_run import CompletedRun, keep_output, run_cell
from dpexp.study.sweep.cells_lock import cells_lock
from dpexp.study.sweep.order import balanced_rounds
from dpexp.study.sweep.sweep_journal import name_of, parent_journal


def plan_runs(
    experiment: Experiment, only: str = "", seed: int = 0, rounds: int | None = None
) -> list[PlannedRun]:
    """Every run in the order of execution: rounds, by default the experiment's, in a balanced order.

    ``only`` drops the cells that do not match the pattern, except the single device.
    Raises ConfigError for a pattern that matches no cell.
    """
    cells = list(experiment.runs)
    if only:
        chosen = set(experiment.cells_matching(only))
        cells = [cell for cell in cells if cell in chosen or experiment.is_reference(cell)]
    orders = balanced_rounds(cells, rounds or experiment.repeats, f"{experiment.name} {seed}")
    return [PlannedRun(cell, number) for number, order in enumerate(orders, start=1) for cell in order]


Way = Callable[["Sweep", list[PlannedRun]], Generator[CompletedRun]]
"""How the runs of a sweep are made: yields each that has ended. NotStartedError: none can begin."""


class Sweep:
    """A sweep of one experiment; ``folder`` is that of its run, ``records`` holds its runs' Records.

    With a ``limit`` it ends when its claims are decided, after so many rounds at most.
    """

    def __init__(self, experiment: Experiment, folder: Path, limit: int | None = None) -> None:
        self.experiment = experiment
        self.folder = folder
        self.records = folder / sweep_records.RECORDS
        self.limit = limit

    @classmethod
    def new(cls, experiment: Experiment, limit: int | None = None) -> Sweep:
        """A sweep that has not begun; nothing is written yet. Raises ConfigError for too low a limit."""
        if limit is not None and limit <= experiment.repeats:
            fixed = f"{experiment.name} always runs {plural(experiment.repeats, 'round')}"
            raise ConfigError(f"--limit {limit}: {fixed}; give a higher limit")
        return cls(experiment, home() / "runs" / new_run_id(), limit)

    @classmethod
    def latest(cls, experiment: Experiment) -> Sweep | None:
        """The newest sweep of this experiment on this disk, finished or not."""
        for summary in summaries(home() / "runs"):
            found = (summary.strategy, summary.experiment, summary.name)
            if found == (SWEEP_STRATEGY, experiment.name, name_of(experiment)):
                folder = home() / "runs" / summary.run_id
                return cls(experiment, folder, load(folder).config.get("limit"))
        return None

    def missing(self, planned: list[PlannedRun]) -> list[PlannedRun]:
        """The runs that have not finished. Of those that have, the sweep now has the Record.

        It may have died before it had, and what it has may be damaged.
        Raises ConfigError if RUNS, or a file that it names, has changed since the sweep.
        """
        if os.path.exists(self.records):  # False where it is not allowed to look
            wrong = {*sweep_records.wrong_records(self.folder)}
            lacking = {run.name for run in planned if run.name in wrong or not self._has_finished(run)}
            for name in lacking:
                keep_output(self.folder, name)
            left = sweep_records.mend(self.folder, lacking | wrong)
            sweep_records.set_aside(self.folder, left & wrong)
        return [run for run in planned if not self._has_finished(run)]

    def _has_finished(self, planned: PlannedRun) -> bool:
        path = self.records / f"{planned.name}.json"
        try:
            record = read_record(path)
        except ConfigError:  # there is none
            return False
        if changed := self.experiment.changed_fields(planned.cell, record.config):
            since = f"cell '{planned.cell}' has changed since that sweep ({', '.join(changed)})"
            raise ConfigError(f"{since}: sweep without --resume")
        if files := changed_files(record, record.config):
            raise ConfigError(f"cell '{planned.cell}': {files[0]}; or sweep without --resume")
        return record.status == "finished"

    def run(
        self,
        planned: list[PlannedRun],
        report: Callable[[CompletedRun], None],
        way: Way | None = None,
        *,
        track: bool = True,
    ) -> list[CompletedRun]:
        """Run one after the other, or another ``way``, and report each; ``track`` is for later deliveries.

        The sweep's journal is closed however the sweep ends (``sweep_journal``).
        """
        completed: list[CompletedRun] = []
        with (
            parent_journal(self.folder, self.experiment, self.limit, track=track) as journal,
            closing((way or Sweep.here)(self, planned)) as results,
        ):
            make_folder(self.records, exist_ok=True)
            for result in results:
                completed.append(result)
                done = sum(run.finished for run in completed)
                journal.set({"summary.done": done, "summary.failed": len(completed) - done})
                wall_s = {f"summary.wall_s.{result.planned.name}": round(result.wall_s, 3)}
                journal.set(wall_s | {"summary.rounds": self.rounds})
                journal.flush()
                report(result)
            journal.set({"summary.speed_ups": speed_ups(run_records(self.records))})
        return completed

    def here(self, planned: list[PlannedRun]) -> Generator[CompletedRun]:
        """Run what is missing on this machine, after the end of a run that an earlier sweep left at work."""
        with cells_lock(self.folder) as held:
            yield from self.one_by_one(self.missing(planned), [held])

    def one_by_one(self, planned: list[PlannedRun], held: Sequence[int] = ()) -> Generator[CompletedRun]:
        """Run one after the other, each in a child process, which inherits the open files ``held``."""
        for run in planned:
            if self._is_over(run):
                return
            yield run_cell(self.experiment, run, self.folder, held)

    def _is_over(self, run: PlannedRun) -> bool:
        """Whether this run would begin a round although the rounds so far have decided the claims."""
        done = self.rounds
        if self.limit is None or run.round <= done or done < self.experiment.repeats:
            return False
        return not self.undecided()

    def undecided(self) -> list[str]:
        """The claims about time that the Records so far do not decide."""
        verdicts = judge(self.experiment, measured_runs(self.records, load(self.folder).config))
        return [one.claim.text for one in verdicts if one.is_timed and one.outcome == ClaimOutcome.NOT_SHOWN]

    @property
    def has_finished(self) -> bool:
        """Whether the sweep says so itself: one that was killed after its last run has no end."""
        return load(self.folder).status == "finished"

    @property
    def rounds(self) -> int:
        """How many rounds have begun."""
        numbers = (path.stem.rpartition(".r")[2] for path in self.records.glob("*.r[0-9]*.json"))
        return max(map(int, numbers), default=0)

    def run_folders(self) -> list[Path]:
        """The folder of the sweep, then those of its runs that are on this disk."""
        children = [self.folder.parent / record.run_id for record in run_records(self.records).values()]
        return [self.folder, *(folder for folder in children if (folder / RECORD).exists())]

    def publish(self) -> Path:
        """Make this sweep's Records the committed result for its kind of machine; returns their folder.

        Raises ConfigError if a run is missing or did not finish.
        """
        rounds = max(self.rounds, self.experiment.repeats)
        planned = plan_runs(self.experiment, rounds=rounds)
        if missing := self.missing(planned):
            shown = ", ".join(run.name for run in missing[:5])
            what = f"{plural(len(missing), 'run')} {be(len(missing))} missing or did not finish"
            raise ConfigError(f"{what} ({shown} …): --resume runs them")
        target = self.experiment.records / self.machine_kind()
        if target.exists():
            shutil.rmtree(target)
        target.mkdir(parents=True)
        for name in (*(f"{run.name}.json" for run in planned), SWEEP):
            record = read_record(self.records / name)
            write_atomically(target / name, record.to_json().encode(), private=False)
        write_atomically(target / CHECKSUMS, checksums(target).encode(), private=False)
        return target

    def machine_kind(self) -> str:
        """``cpu``, or the name of the accelerator that the runs used, as a folder name."""
        for record in run_records(self.records).values():
            chips = record.environment.get("accelerators") or []
            if chips and record.execution == "real" and any("cuda" in d for d in record.devices["used"]):
                return str(chips[0]["name"]).lower().replace(" ", "-")
        return "cpu"
