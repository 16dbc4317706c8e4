"""A clock that runs back, jumps, or is before 1970: a journal keeps every line, and its times their order."""

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path

import journals
import pytest
from command_lines import script
from mlflow_reader import only_run

from dpexp.record import clock
from dpexp.record.journal.fold import finish, load
from dpexp.record.journal.journal import Journal

YEAR_NS = 365 * 24 * 3600 * 10**9
READINGS: dict[str, Callable[[int], int]] = {
    "back": lambda number: (56 - number) * YEAR_NS,
    "before 1970": lambda number: -30 * YEAR_NS + number,
    "jumps": lambda number: (number % 2) * 200 * YEAR_NS,
}


@pytest.mark.usefixtures("home_with_store")
def test_no_clock_loses_a_line_or_breaks_a_command(dpexp_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_offset_ns", [])
    for number, (name, reading) in enumerate(READINGS.items()):
        with monkeypatch.context() as patched:
            readings = map(reading, itertools.count())
            patched.setattr(time, "time_ns", lambda readings=readings: next(readings))
            for resumes in (False, True):
                if resumes:
                    journal = Journal.reopen(dpexp_home / "runs" / f"run{number}")
                    journal.set(status="running", ended=None)
                else:
                    clock.restart()
                    journal = journals.begin(dpexp_home / "runs", f"run{number}", started=clock.now())
                    journals.observe(journal)
                journals.step(journal, 20 * resumes, 20)
                journal.set(status="finished", ended=clock.now())
                journal.close()
                finish(journal.path)
        record = load(journal.folder)
        times = [json.loads(line)["at"] for line in journal.path.read_bytes().splitlines()]
        assert (record.damage, len(record.steps["loss"]), times) == ([], 40, sorted(times)), name
        assert record.started is not None
        assert record.ended is not None
        assert record.started <= record.ended, name
    listed = script("runs.py", "list")
    assert (listed.returncode, len(listed.stdout.splitlines())) == (0, 1 + len(READINGS)), listed.stderr
    for words in (("sync",), ("check",), ("check", "--store"), ("reap",), ("show", "run1")):
        done = script("runs.py", *words)
        problems = [
            line for line in done.stdout.splitlines() if "before started" in line or "journal" in line
        ]
        assert (done.stderr, problems) == ("", []), words
    assert only_run(f"sqlite:///{dpexp_home / 'mlflow.db'}", "run1").info.status == "FINISHED"
