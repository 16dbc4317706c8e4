"""Parent: the run of a sweep itself, whose id its runs have as their ``parent``.

::

    every run was made             finished    whether the runs finished or not
    Ctrl-C, SIGTERM                killed
    an error, as of a full disk    failed      with the error
    tasks side by side             finished    the first of them makes it, and none changes it
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpexp.config import names
from dpexp.config.errors import text_of
from dpexp.engine.facts import environment
from dpexp.record.files import JournalError
from dpexp.record.journal import SWEEP_STRATEGY, Journal, now
from dpexp.record.record import Record, Row, finish
from dpexp.record.runs import folders
from dpexp.study.experiment.experiment import Experiment


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
