"""A check after a clean check finds what a first check finds, whatever happened to any file meanwhile."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from clean_home import OTHERS, Other, count_folds, ended, fill, forget, rows

from dpexp.record.journal.fold import fold
from dpexp.record.journal.journal import JOURNAL, RECORD, Journal
from dpexp.record.record import Record, Row
from dpexp.record.runs import check, clean_files
from dpexp.record.runs.index import folders
from dpexp.tracking.delivery.repair import run_problems

DAMAGES = 60


@pytest.fixture
def home(dpexp_home: Path) -> Path:
    fill(dpexp_home)
    return dpexp_home


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


@pytest.mark.parametrize("before", ["checked", "ended"])
def test_a_check_after_a_clean_check_finds_what_a_first_check_finds(
    home: Path, tmp_path: Path, before: str
) -> None:
    if before == "ended":
        assert all((folder / clean_files.NOTE).exists() for folder in ended(home))
    assert rows(home) == of_a_first_check(home) == []
    shutil.copytree(home, tmp_path / "whole")
    rng, number_of_findings = random.Random(31), 0
    for number in range(DAMAGES):
        if before == "ended":
            forget(home)
        paths = damage(home, rng)
        found = rows(home)
        assert found == of_a_first_check(home), (number, paths)
        number_of_findings += bool(found)
        for path in paths:
            shutil.copy2(tmp_path / "whole" / path.relative_to(home), path)
        assert rows(home) == [], (number, paths)
    assert number_of_findings > DAMAGES / 2


@pytest.fixture
def folded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return count_folds(monkeypatch)


@OTHERS
def test_files_are_clean_for_the_code_and_the_home_that_found_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, folded: list[str], other: Other
) -> None:
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
