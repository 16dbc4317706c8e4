"""Sweep journal: the parent of a sweep's runs, begun or reopened, and how it ends.

::

    every run was made                  finished    whether the runs finished or not
    Ctrl-C, SIGTERM                     killed
    an error, as a job that is refused  failed      with the error
    NotStartedError                     a new sweep leaves nothing, a resumed one stays as it was
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpexp.config import names
from dpexp.config.errors import ConfigError, text_of
from dpexp.engine.facts.environment import environment
from dpexp.record import clock
from dpexp.record.journal.fold import finish, load
from dpexp.record.journal.journal import SWEEP_STRATEGY, Journal
from dpexp.record.record import Row
from dpexp.record.runs.check import check_end
from dpexp.record.runs.sweep_records import OF_SWEEP, RECORDS, write_record
from dpexp.study.experiment.experiment import Experiment
from dpexp.study.experiment.records import BALANCED, SWEEP


class NotStartedError(ConfigError):
    """No run of a sweep could be begun, and none is left at work."""


def name_of(experiment: Experiment) -> str:
    """The name of the experiment's sweeps."""
    return names.fitted(f"sweep of {experiment.title}", SWEEP_STRATEGY)


@contextmanager
def parent_journal(
    folder: Path, experiment: Experiment, limit: int | None, *, track: bool
) -> Iterator[Journal]:
    """The sweep's journal, new or reopened; its Record is written unless an error cuts the sweep short.

    ``track`` says whether the sweep and its runs may be delivered.
    """
    earlier = load(folder) if os.path.exists(folder) else None  # False where it is not allowed to look
    try:
        with Journal.reopen(folder) if earlier else _new(folder, experiment, limit) as journal:
            (folder / RECORDS / SWEEP).unlink(missing_ok=True)
            journal.set({"status": "running", "ended": None, "error": None, "config.track": track})
            journal.flush()
            end: Row = {"status": "killed"}
            try:
                yield journal
                end = {"status": "finished"}
            except NotStartedError:
                end = {key: getattr(earlier, key, None) for key in ("status", "ended", "error", "config")}
                raise
            except Exception as error:
                end = {"status": "failed", "error": {"type": type(error).__name__, "message": text_of(error)}}
                raise
            finally:
                journal.set({"ended": clock.now(), **end})
    except NotStartedError:
        if earlier is None:
            shutil.rmtree(folder)
        else:
            _write_record(folder, journal)
        raise
    _write_record(folder, journal)


def _new(folder: Path, experiment: Experiment, limit: int | None) -> Journal:
    journal = Journal(folder.parent, folder.name)
    config = {
        "question": experiment.question,
        "cells": list(experiment.runs),
        "repeats": experiment.repeats,
        "order": BALANCED,
        **({} if limit is None else {"limit": limit}),
    }
    journal.set(name=name_of(experiment), experiment=experiment.name, strategy=SWEEP_STRATEGY)
    journal.set(config=config, environment=environment())
    return journal


def _write_record(folder: Path, journal: Journal) -> None:
    record = finish(journal.path)
    write_record(folder, OF_SWEEP, journal.path)
    check_end(folder, record)
