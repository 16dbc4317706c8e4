"""A home of runs without a fault, what checks find in it, and what makes a check unlike the one before."""

import shutil
from collections.abc import Callable
from pathlib import Path

import journals
import pytest

from dpexp.record.journal.fold import finish, fold, load
from dpexp.record.journal.journal import RECORD, SWEEP_STRATEGY
from dpexp.record.journal.kept import KEPT
from dpexp.record.journal.seal import checksum
from dpexp.record.profiler_trace import write_trace
from dpexp.record.record import Record, Row
from dpexp.record.runs import check, clean_files
from dpexp.record.runs.index import folders
from dpexp.record.runs.origin import key_of
from dpexp.tracking.delivery import ledger
from dpexp.tracking.delivery.ledger import LedgerEntry
from dpexp.tracking.delivery.repair import checked


def fill(home: Path) -> None:
    """Five runs without a fault: a sweep and its run, a delivered one, one with a trace, a shorter one."""
    runs = home / "runs"
    sweep = journals.begin(runs, "sweep", strategy=SWEEP_STRATEGY, config={}, verification={"checked": False})
    finish(journals.end(sweep))
    for run_id, facts in {"child": {"name": "single.r1", "parent": "sweep"}, "alone": {}}.items():
        journal = journals.complete(runs, run_id, **facts)
        finish(journal)
        now = checksum(journal)
        entry = LedgerEntry("1", "2", True, now["bytes"], now["crc"])
        ledger.write_entry(journal.parent, "there", entry)
    profiled = journals.begin(runs, "profiled")
    profiled.set({"work.operators": {"trace": write_trace(profiled.folder, b'{"traceEvents":[]}')}})
    finish(journals.end(profiled))
    finish(journals.complete(runs, "kept", steps=50))
    shutil.copy(runs / "alone" / RECORD, runs / "kept" / KEPT)  # of another run: it says nothing of this one
    key_of(home)


def rows(home: Path) -> list[Row]:
    """What ``runs.py check`` finds."""
    found = checked(home, folders(home / "runs"), with_store=False, mend=False)
    return [{key: row[key] for key in row if key != "repaired"} for row in found]


def forget(home: Path) -> None:
    """Delete what earlier checks have kept: what runs have noted at their end is left."""
    for path in home.glob(".cache-check-*"):
        path.unlink()


def ended(home: Path) -> list[Path]:
    """Check all runs as at their end; returns their folders."""
    every = folders(home / "runs")
    for folder in every:
        check.check_end(folder, load(folder))
    return every


def other_key(home: Path, _: pytest.MonkeyPatch) -> None:
    (key,) = home.glob(".origin-key-*")
    key.write_bytes(bytes(32))


def no_key(home: Path, _: pytest.MonkeyPatch) -> None:
    (key,) = home.glob(".origin-key-*")
    key.chmod(0o644)


def other_code(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean_files, "_code", lambda: "that of another version")


Other = Callable[[Path, pytest.MonkeyPatch], None]
OTHERS = pytest.mark.parametrize("other", [other_key, no_key, other_code])


def count_folds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that gets the name of each run that a check folds."""
    found: list[str] = []

    def counted(journal: Path) -> Record:
        found.append(journal.parent.name)
        return fold(journal)

    monkeypatch.setattr(check, "fold", counted)
    return found
