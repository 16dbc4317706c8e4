"""A check after a clean check finds what a first check finds, whatever happened to any file meanwhile."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import journals
import pytest
from record_factory import whole

from dpexp.record.journal.fold import finish, fold
from dpexp.record.journal.journal import JOURNAL, RECORD, SWEEP_STRATEGY, Journal
from dpexp.record.journal.kept import KEPT
from dpexp.record.journal.seal import checksum
from dpexp.record.profiler_trace import write_trace
from dpexp.record.record import Record, Row
from dpexp.record.runs import check, clean_files
from dpexp.record.runs.index import folders
from dpexp.record.runs.sweep_records import write_program, write_record
from dpexp.tracking.delivery import ledger
from dpexp.tracking.delivery.ledger import LedgerEntry
from dpexp.tracking.delivery.repair import checked, run_problems

DAMAGES = 100


@pytest.fixture
def home(dpexp_home: Path) -> Path:
    """Five runs without a fault: a sweep and its run, a delivered one, one with a trace, a shorter one."""
    runs = dpexp_home / "runs"
    sweep = journals.begin(runs, "sweep", strategy=SWEEP_STRATEGY, config={}, verification={"checked": False})
    finish(journals.end(sweep))
    for run_id, facts in {"child": {"name": "single.r1", "parent": "sweep"}, "alone": {}}.items():
        journal = journals.complete(runs, run_id, **facts)
        finish(journal)
        now = checksum(journal)
        entry = LedgerEntry("1", "2", True, now["bytes"], now["crc"])
        ledger.write_entry(journal.parent, "there", entry)
    write_record(sweep.folder, "single.r1", runs / "child" / JOURNAL)
    write_program(sweep.folder, "quick.r1", whole(2, run_id="quick", parent="sweep"))
    profiled = journals.begin(runs, "profiled")
    profiled.set({"work.operators": {"trace": write_trace(profiled.folder, b'{"traceEvents":[]}')}})
    finish(journals.end(profiled))
    finish(journals.complete(runs, "kept", steps=50))
    shutil.copy(runs / "alone" / RECORD, runs / "kept" / KEPT)  # of another run: it says nothing of this one
    return dpexp_home


def rows(home: Path) -> list[Row]:
    """What ``runs.py check`` finds."""
    found = checked(home, folders(home / "runs"), with_store=False, mend=False)
    return [{key: row[key] for key in row if key != "repaired"} for row in found]


def of_a_first_check(home: Path) -> list[Row]:
    runs = folders(home / "runs")
    return [vars(each) for folder in runs for each in run_problems(home, folder, with_store=False)]


def _flip(content: bytes, _: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]


CHANGES: list[Callable[[bytes, bytes, random.Random], bytes | None]] = [
    _flip,
    _flip,
    lambda content, other, rng: content[: rng.randrange(len(content))],
    lambda content, other, rng: content + content[-rng.randrange(1, len(content)) :],
    lambda content, other, rng: other,
    lambda content, other, rng: None,
]


def damage(home: Path, rng: random.Random) -> list[Path]:
    """Change, cut, exchange or remove one or two of all files; their times and the lengths tell nothing."""
    paths = sorted(path for path in home.rglob("*") if path.is_file() and not path.name.startswith(".origin"))
    chosen = rng.sample(paths, rng.choice((1, 1, 2)))
    change, contents = rng.choice(CHANGES), [path.read_bytes() for path in chosen]
    others = contents[::-1] if len(chosen) > 1 else [rng.choice(paths).read_bytes()]
    for path, content, other in zip(chosen, contents, others, strict=True):
        before = path.stat()
        if (now := change(content, other, rng)) is None:
            path.unlink()
        else:
            path.write_bytes(now)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return chosen


def test_a_check_after_a_clean_check_finds_what_a_first_check_finds(home: Path, tmp_path: Path) -> None:
    assert rows(home) == of_a_first_check(home) == []
    shutil.copytree(home, tmp_path / "whole")
    rng, number_of_findings = random.Random(31), 0
    for number in range(DAMAGES):
        paths = damage(home, rng)
        found = rows(home)
        assert found == of_a_first_check(home), (number, paths)
        number_of_findings += bool(found)
        for path in paths:
            shutil.copy2(tmp_path / "whole" / path.relative_to(home), path)
        assert rows(home) == [], (number, paths)
    assert number_of_findings > DAMAGES / 2


def _other_key(home: Path, _: pytest.MonkeyPatch) -> None:
    (key,) = home.glob(".origin-key-*")
    key.write_bytes(bytes(32))


def _no_key(home: Path, _: pytest.MonkeyPatch) -> None:
    (key,) = home.glob(".origin-key-*")
    key.chmod(0o644)


def _other_code(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean_files, "_code", lambda: "that of another version")


@pytest.mark.parametrize("other", [_other_key, _no_key, _other_code])
def test_files_are_clean_for_the_code_and_the_home_that_found_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, other: Callable[[Path, pytest.MonkeyPatch], None]
) -> None:
    folded: list[str] = []

    def counted(journal: Path) -> Record:
        folded.append(journal.parent.name)
        return fold(journal)

    monkeypatch.setattr(check, "fold", counted)
    every = [folder.name for folder in folders(home / "runs")]
    assert (rows(home), folded) == ([], every)
    assert (rows(home), folded) == ([], every)
    other(home, monkeypatch)
    assert (rows(home), folded) == ([], every * 2)


def test_files_that_change_while_they_are_checked_are_not_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = home / "runs" / "alone" / JOURNAL
    whole_journal = journal.read_bytes()
    damaged = whole_journal.replace(b"cpu", b"gpu", 1)

    def mended_before(path: Path) -> Record:
        journal.write_bytes(whole_journal)
        return fold(path)

    journal.write_bytes(damaged)
    with monkeypatch.context() as patched:
        patched.setattr(check, "fold", mended_before)
        assert rows(home) == []
    journal.write_bytes(damaged)
    assert "journal" in [row["kind"] for row in rows(home)]


def test_a_run_that_is_running_is_checked_once_it_has_ended(home: Path) -> None:
    folder = home / "runs" / "alone"
    lines = (folder / JOURNAL).read_bytes().splitlines(keepends=True)
    (folder / JOURNAL).write_bytes(b"".join(lines[:2] + lines[3:]))
    record = (folder / RECORD).read_bytes()
    with Journal.reopen(folder):
        (folder / RECORD).write_bytes(record)
        assert rows(home) == []
    assert "journal" in [row["kind"] for row in rows(home)]
