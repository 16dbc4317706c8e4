"""Runs of the engine in a test's own process, from config to Record: no follower, no progress bar."""

from pathlib import Path

from dpexp.config.run_config import RunConfig
from dpexp.engine.loop import execute
from dpexp.engine.observations import run_facts
from dpexp.engine.prepare import prepare
from dpexp.engine.progress import ProgressBar
from dpexp.record.journal import Journal
from dpexp.record.record import Record


def recorded(home: Path, config: RunConfig, run_id: str = "run") -> Record:
    prepared = prepare(config)
    with Journal(home / "runs", run_id) as journal:
        journal.set(run_facts(prepared))
        execute(prepared, journal, ProgressBar(hidden=True))
        journal.set(status="finished")
    return Record.load(journal.folder)
