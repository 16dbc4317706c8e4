"""Jobs: a sweep on a cluster, each of its rounds a job of Slurm through submitit.

::

    sweep ... --on slurm                        a node
    the sweep's journal
    round 1 --> job 17 -----------------------> a child process a run, one after the other
    round 2 --> job 18 -----------------------> ...
                 shared disk: runs/<sweep>/records/   the Record of each run
                              runs/<sweep>/jobs/      submitit's files, and a line for each run that has ended

A job runs what its round lacks, so that it may begin again: after a requeue, or for ``--resume``. SIGTERM and
submitit's signal before the time limit end its run first; one with ranks then leaves a snapshot, and resumes.
The jobs need neither this process nor MLflow; a sweep that is resumed waits for those that still run.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from dpexp.config.errors import ConfigError
from dpexp.config.process import home
from dpexp.record.journal.durable import write_atomically
from dpexp.record.journal.fold import load
from dpexp.record.record import Row
from dpexp.study.experiment.records import PlannedRun, read_record
from dpexp.study.sweep.cell_run import CompletedRun
from dpexp.study.sweep.slurm_executor import JOBS
from dpexp.study.sweep.sweep import Sweep
from dpexp.study.sweep.sweep_journal import NotStartedError

if TYPE_CHECKING:
    from submitit import Executor, Job
    from submitit.helpers import DelayedSubmission

POLL_S, _GRACE_S = 1.0, 30.0
"""Seconds between two looks, and those after which what a job wrote before its end can be read here."""
SIGNAL_S = 30.0
"""Seconds in which a job gets a signal that one of its runs has got."""


# --- on the node ---------------------------------------------------------------------------------


@dataclass
class Round:
    """The runs of one round as a job: submitit pickles it, calls it, and ``checkpoint`` before the limit."""

    sweep: Sweep
    planned: list[PlannedRun]
    home: Path = field(default_factory=home)
    _work: list[Future[None]] = field(default_factory=list, init=False)
    _stops: threading.Event | None = field(default=None, init=False)

    def __call__(self) -> None:
        """Run what the round lacks. The runs are started by a thread, so that signals are handled meanwhile.

        The runs ignore submitit's signal, of which Slurm sends one to each process of a job.
        """
        from submitit import JobEnvironment

        os.environ["DPEXP_HOME"] = str(self.home)
        self._stops = threading.Event()
        mask = (signal.SIG_BLOCK, {getattr(signal, f"SIG{JobEnvironment.USR_SIG}")})
        signal.signal(signal.SIGTERM, self._end)
        with ThreadPoolExecutor(1, initializer=signal.pthread_sigmask, initargs=mask) as threads:
            self._work = [threads.submit(self.run, self._stops)]
            self._work[0].result()

    def run(self, stops: threading.Event) -> None:
        """Run what the round lacks, until the job ``stops``."""
        for completed in self.sweep.one_by_one(self.sweep.missing(self.planned)):
            if _was_terminated(completed) and stops.wait(SIGNAL_S):
                return
            row = {"run": completed.planned.name, "wall_s": completed.wall_s, "error": completed.error}
            with open(_lines_file(self.sweep, completed.planned.round), "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            if stops.is_set():
                return

    def _stop(self) -> None:
        """End the run at work, and wait until it has."""
        import psutil

        ended = set[psutil.Process]()
        if self._stops is not None:
            self._stops.set()
        while wait(self._work, timeout=0.2).not_done:
            for child in {*psutil.Process().children()} - ended:
                ended.add(child)
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.terminate()

    def _end(self, number: int, frame: object) -> NoReturn:
        """End without a result: the job is cancelled, or Slurm starts it again."""
        self._stop()
        sys.exit(128 + number)

    def checkpoint(self) -> DelayedSubmission:
        """What submitit runs in the requeued job."""
        from submitit.helpers import DelayedSubmission

        self._stop()
        return DelayedSubmission(Round(self.sweep, self.planned, self.home))


def _was_terminated(completed: CompletedRun) -> bool:
    """Whether SIGTERM ended a run: Slurm sends it to each process of a job, in any order."""
    record = completed.record
    return completed.error == "killed by SIGTERM" or (record is not None and record.status == "killed")


# --- where the sweep was started -----------------------------------------------------------------


def in_jobs(
    sweep: Sweep, planned: list[PlannedRun], executor: Executor, report: Callable[[str], None] = print
) -> Generator[CompletedRun]:
    """Submit a job for each round, and yield its runs as they end; those of a lost job have an error.

    Ctrl-C cancels the jobs. When this process dies they run on, and ``--resume`` waits for them.
    Raises ConfigError for a job that Slurm refuses, then none is left; NotStartedError if it is the first.
    """
    (sweep.folder / JOBS).mkdir(exist_ok=True)
    known, lines = load(sweep.folder).summary, JobLines(sweep)
    yield from (run for run in lines.read() if f"wall_s.{run.planned.name}" not in known)
    rounds = {number: [*runs] for number, runs in groupby(planned, key=lambda run: run.round)}
    jobs: dict[int, Job[None]] = {}
    gone: dict[int, float] = {}
    try:
        for number, runs in rounds.items():
            jobs[number] = _job(sweep, runs, executor)
            report(f"round {number}: job {jobs[number].job_id}")
        while jobs:
            alive = _alive(jobs.values())  # before reading: an ended job writes no more lines
            for completed in lines.read():
                number = completed.planned.round
                rounds[number] = [run for run in rounds.get(number, []) if run != completed.planned]
                yield completed
            for number in [number for number, job in jobs.items() if job.job_id not in alive]:
                job, since = jobs[number], gone.setdefault(number, time.monotonic())
                if not rounds[number] or _has_result(job) or time.monotonic() > since + _GRACE_S:
                    yield from (CompletedRun(run, None, 0.0, _why(job)) for run in rounds[number])
                    del jobs[number]
            if jobs:
                time.sleep(POLL_S)
    except (KeyboardInterrupt, GeneratorExit, ConfigError) as error:
        for job in jobs.values():
            job.cancel(check=False)
        if isinstance(error, ConfigError) and not jobs:
            with contextlib.suppress(OSError):  # it holds what an earlier process submitted
                (sweep.folder / JOBS).rmdir()
            raise NotStartedError(str(error)) from None
        raise


class JobLines:
    """The lines that the jobs of a sweep have written, each read once."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._offsets: dict[Path, int] = {}

    def read(self) -> Iterator[CompletedRun]:
        """The runs that have ended since the last time."""
        for path in sorted((self._sweep.folder / JOBS).glob("round-*.jsonl")):
            with open(path, "rb") as file:
                file.seek(self._offsets.get(path, 0))
                complete = file.read().rpartition(b"\n")[0]
                self._offsets[path] = self._offsets.get(path, 0) + len(complete) + bool(complete)
            for row in map(json.loads, complete.splitlines()):
                yield self._completed(row)

    def _completed(self, row: Row) -> CompletedRun:
        cell, _, number = row["run"].rpartition(".r")
        path = self._sweep.records / f"{row['run']}.json"
        record = read_record(path) if path.is_file() else None
        return CompletedRun(PlannedRun(cell, int(number)), record, row["wall_s"], row["error"])


def _lines_file(sweep: Sweep, number: int) -> Path:
    return sweep.folder / JOBS / f"round-{number}.jsonl"


def _job(sweep: Sweep, planned: list[PlannedRun], executor: Executor) -> Job[None]:
    """The job of a round: that of an earlier process if it still runs, else a new one."""
    folder = sweep.folder / JOBS
    path = folder / f"round-{planned[0].round}.job"
    if path.is_file():
        earlier: Job[None] = executor.job_class(folder, path.read_text())
        if earlier.job_id in _alive([earlier]):
            return earlier
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # submitit prints what sbatch printed
            job = executor.submit(Round(sweep, planned))
    except (RuntimeError, OSError) as error:  # submitit's, with the message of sbatch; or there is no sbatch
        for path in _not_submitted(folder):
            path.unlink()
        raise ConfigError(f"--on slurm: {' '.join(str(error).split())}") from None
    write_atomically(path, job.job_id.encode(), private=False)
    return job


def _not_submitted(folder: Path) -> list[Path]:
    """submitit's files of a job that was refused: they have no job's number yet."""
    scripts = [path for path in folder.glob(".submission_file_*.sh") if not path.is_symlink()]
    return [*scripts, *(path for path in folder.glob("*.pkl") if "_" not in path.stem)]


def _alive(jobs: Collection[Job[None]]) -> set[str]:
    """The jobs that wait or run. Slurm's queue is read: its accounts, as submitit does, it may not keep."""
    from submitit import SlurmJob

    ids = {job.job_id for job in jobs}
    if not all(isinstance(job, SlurmJob) for job in jobs):
        return {job.job_id for job in jobs if not job.done()}
    queue = ["squeue", "--noheader", "--me", "--format=%i"]
    listed = subprocess.run(queue, capture_output=True, text=True, check=False)
    return ids if listed.returncode else ids & {*listed.stdout.split()}


def _has_result(job: Job[None]) -> bool:
    return job.paths.result_pickle.exists()


def _why(job: Job[None]) -> str:
    """Why a job's runs have no Record."""
    if not _has_result(job):
        return f"job {job.job_id} was lost: {job.paths.stderr}"
    parts = str(job.exception()).split("-" * 22)  # submitit's lines around a traceback
    last = parts[1].strip().rpartition("\n")[2] if len(parts) > 1 else "it ended without this run"
    return f"job {job.job_id}: {last}: {job.paths.stderr}"
