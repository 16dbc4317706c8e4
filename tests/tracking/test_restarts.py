"""Runs that begin again, delivered while they run and later: MLflow has what the journal folds to."""

import contextlib
import os
import random
import signal
import sqlite3
import time
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import journals
import pytest
from command_lines import PATIENCE_S
from launching import AGENT, SCRIPT, Process, ranks_of, record, start_forked, wait, words
from mlflow_reader import Death, dying, expected_metrics, history, is_system, only_run

from dpexp.record.journal import JOURNAL, Journal, now
from dpexp.record.record import finish, fold
from dpexp.record.runs import begin
from dpexp.tracking import deliver
from dpexp.tracking.content import placeholders
from dpexp.tracking.deliver import Upload
from dpexp.tracking.store import Store

pytestmark = pytest.mark.filterwarnings("default")  # MLflow, pydantic and SQLAlchemy warn of each other


@pytest.fixture(scope="module")
def store_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose store all runs share."""
    home = tmp_path_factory.mktemp("home")
    Store.from_environment(home).open()
    return home


values = count(1)  # each is another, so that a step that was taken back differs from the one in its place


def stored_points(uri: str, run_id: str) -> dict[str, list[tuple[int, Any]]]:
    """Every point of the run's metrics, repeated ones too."""
    run = only_run(uri, run_id)
    found = {key: history(uri, run.info.run_id, key) for key in run.data.metrics if not is_system(key)}
    return {key: [(step, value) for step, value, _ in points] for key, points in found.items()}


def expected_points(journal: Path) -> dict[str, list[tuple[int, Any]]]:
    """The points of the journal's fold, each once; figures that stand first are NaN until they are known."""
    record = fold(journal)
    first = {point.key: [(0, "nan")] for point in placeholders(record, 0)}
    known = expected_metrics(record)
    return {key: first.get(key, []) + sorted(known.get(key, {}).items()) for key in first.keys() | known}


@dataclass
class Run:
    """One run through its attempts, with a follower that may die at any call."""

    home: Path
    random: random.Random
    journal: Journal
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.restart_follower()

    def restart_follower(self) -> None:
        self.store = Store.from_environment(self.home)
        self.upload = Upload(self.store, self.journal.folder)

    # --- what may happen ---

    def take_steps(self) -> None:
        number = self.random.randint(1, 9)
        numbers = [float(next(values)) for _ in range(number)]
        lists = {"steps.loss": numbers, "steps.time_ms": [n / 100 for n in numbers]}
        self.journal.extend(lists | {"steps.samples": [30] * number, "metrics.accuracy": numbers[:1]})
        if self.random.random() < 0.8:
            self.journal.flush()

    def time_phases(self) -> None:
        if fold(self.journal.path).phases:  # once in an attempt
            return
        self.journal.set(phases={"forward": [float(next(values)) for _ in range(3)]})
        self.journal.flush()

    def deliver(self) -> None:
        self._unless_the_follower_dies(self.upload.send_points)

    def die_and_begin_again(self) -> None:
        """The main process is killed: what it did not flush is lost, and its follower may see the end."""
        self.journal._file.close()
        self._end()

    def stop_and_begin_again(self) -> None:
        """A signal, or an error, ends the attempt."""
        self.journal.set(status=self.random.choice(["killed", "failed"]), ended=now())
        self.journal.close()
        finish(self.journal.path)
        self._end()

    def _end(self) -> None:
        if self.random.random() < 0.5:
            self._unless_the_follower_dies(self.upload.complete)
        self.journal = begin(self.home, self.journal.folder.name, {"config": {"batch_size": 30}})
        if self.random.random() < 0.5:  # else the follower of before goes on
            self.restart_follower()
        if self.random.random() < 0.5:
            self.deliver()

    def _unless_the_follower_dies(self, action: Any) -> None:
        death: AbstractContextManager[None] = nullcontext()
        if self.random.random() < 0.3:
            death = dying(self.store, self.random.randint(0, 6), self.random.random() < 0.5)
        try:
            with death:
                action()
        except Death:
            self.log.append("the follower died")
            self.restart_follower()


HAPPENINGS = {
    Run.take_steps: 8,
    Run.deliver: 5,
    Run.time_phases: 1,
    Run.die_and_begin_again: 2,
    Run.stop_and_begin_again: 1,
}


@pytest.mark.parametrize("seed", range(4))
def test_mlflow_has_what_the_journal_folds_to(
    store_home: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliver, "BATCH", 7)
    rng, uri = random.Random(seed), f"sqlite:///{store_home / 'mlflow.db'}"
    run = Run(store_home, rng, journals.begin(store_home / "runs", f"seed{seed}", config={"batch_size": 30}))
    for happening in rng.choices(list(HAPPENINGS), list(HAPPENINGS.values()), k=25):
        run.log.append(happening.__name__)
        happening(run)
    run.take_steps()
    journals.end(run.journal)
    run._unless_the_follower_dies(run.upload.complete)
    Upload(run.store, run.journal.folder).complete()
    assert stored_points(uri, f"seed{seed}") == expected_points(run.journal.path), run.log
    assert only_run(uri, f"seed{seed}").info.status == "FINISHED"


WAITING_MODEL = """
import pathlib, time
from torch import nn, randn, zeros
class Waiting(nn.Linear):
    steps = 0
    def example(self, samples, generator):
        return randn(samples, 6, generator=generator), zeros(samples, 2)
    def forward(self, x):
        self.steps += self.training
        if self.training:
            time.sleep(0.02)
        while self.steps == 75 and pathlib.Path({gate!r}).exists():
            time.sleep(0.02)
        return super().forward(x)
def make():
    return Waiting(6, 2)
"""
"""A flush is due every half second: with steps of 20 ms, before step 75."""


def test_a_restart_by_torchrun_is_one_document_and_one_mlflow_run(
    dpexp_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [*words(tmp_path, steps=80), "--track-timeout", str(PATIENCE_S)]
    gate = tmp_path / "gate"
    gate.touch()
    (tmp_path / "slow.py").write_text(WAITING_MODEL.format(gate=str(gate)))
    process = start_forked(*AGENT, "2", "--max-restarts", "1", SCRIPT, *command)
    until_delivered(dpexp_home / "mlflow.db", 45, process)
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    gate.unlink()
    found = record(wait(process))
    assert (found["status"], len(found["steps"]["loss"])) == ("finished", 80)
    journal = dpexp_home / "runs" / found["run_id"] / JOURNAL
    uri = f"sqlite:///{dpexp_home / 'mlflow.db'}"
    assert stored_points(uri, found["run_id"]) == expected_points(journal)
    later = f"sqlite:///{tmp_path / 'later.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", later)
    Upload(Store.from_environment(dpexp_home), journal.parent).complete()
    assert stored_points(later, found["run_id"]) == expected_points(journal)


def until_delivered(store: Path, step: int, process: Process) -> None:
    """Wait until the store of the only run has this step, which the restart takes back."""
    found = -1
    while found < step:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
        with contextlib.suppress(sqlite3.OperationalError), closing(sqlite3.connect(store)) as connection:
            found = connection.execute("SELECT coalesce(max(step), -1) FROM metrics").fetchone()[0]
