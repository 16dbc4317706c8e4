"""Sweep journal: the parent of a sweep's runs, begun or reopened, and how it ends.

::

    every run was made                  finished    whether the runs finished or not
    Ctrl-C, SIGTERM                     killed
    an error, as a job that is refused  failed      with the error
    NotStartedError                     a new sweep leaves nothing, a resumed one stays as it was
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dpexp.config import names
from dpexp.config.errors import ConfigError, text_of
from dpexp.engine.facts.environment import environment
from dpexp.record.journal.durable import write_atomically
from dpexp.record.journal.fold import finish, load
from dpexp.record.journal.journal import SWEEP_STRATEGY, Journal
from dpexp.record.record import Row, now
from dpexp.study.experiment.experiment import SWEEP, Experiment

if TYPE_CHECKING:
    from dpexp.study.sweep.sweep import Sweep


class NotStartedError(ConfigError):
    """No run of a sweep could be begun, and none is left at work."""


def name_of(experiment: Experiment) -> str:
    """The name of the experiment's sweeps."""
    return names.fitted(f"sweep of {experiment.title}", SWEEP_STRATEGY)


@contextmanager
def parent_journal(sweep: Sweep) -> Iterator[Journal]:
    """The sweep's journal, new or reopened; its Record is written unless an error cuts the sweep short."""
    earlier = load(sweep.folder) if sweep.folder.exists() else None
    try:
        with Journal.reopen(sweep.folder) if earlier else _new(sweep) as journal:
            journal.set(status="running", ended=None, error=None)
            journal.flush()
            end: Row = {"status": "killed"}
            try:
                yield journal
                end = {"status": "finished"}
            except NotStartedError:
                end = {key: getattr(earlier, key, None) for key in ("status", "ended", "error")}
                raise
            except Exception as error:
                end = {"status": "failed", "error": {"type": type(error).__name__, "message": text_of(error)}}
                raise
            finally:
                journal.set({"ended": now(), **end})
    except NotStartedError:
        if earlier is None:
            shutil.rmtree(sweep.folder)
        else:
            _write_record(sweep, journal)
        raise
    _write_record(sweep, journal)


def _new(sweep: Sweep) -> Journal:
    journal = Journal(sweep.folder.parent, sweep.folder.name)
    swept = sweep.experiment
    config = {"question": swept.question, "cells": list(swept.runs), "repeats": swept.repeats}
    if sweep.limit is not None:
        config["limit"] = sweep.limit
    journal.set(name=name_of(swept), experiment=swept.name, strategy=SWEEP_STRATEGY)
    journal.set(config=config, environment=environment())
    return journal


def _write_record(sweep: Sweep, journal: Journal) -> None:
    write_atomically(sweep.records / SWEEP, finish(journal.path).to_json().encode(), private=False)
