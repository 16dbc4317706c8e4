"""A run is checked at its end: the first check believes that nothing was wrong, and what is wrong is said."""

import shutil
from pathlib import Path

import journals
import pytest
from clean_home import OTHERS, Other, count_folds, ended, fill, forget, no_key, rows

import dpexp
from dpexp.record.journal.fold import finish, fold, load
from dpexp.record.journal.journal import JOURNAL, RECORD
from dpexp.record.record import JournalError, Record
from dpexp.record.runs import check, clean_files
from dpexp.record.runs.index import folders


@pytest.fixture
def home(dpexp_home: Path) -> Path:
    fill(dpexp_home)
    return dpexp_home


@pytest.fixture
def folded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return count_folds(monkeypatch)


@OTHERS
def test_the_first_check_believes_what_this_home_and_code_have_noted_at_the_end(
    home: Path, monkeypatch: pytest.MonkeyPatch, folded: list[str], other: Other
) -> None:
    every = [folder.name for folder in ended(home)]
    assert folded == every
    assert (rows(home), folded) == ([], every)
    forget(home)
    other(home, monkeypatch)
    assert (rows(home), folded) == ([], every * 2)


def test_the_note_of_one_run_says_nothing_of_another(home: Path, folded: list[str]) -> None:
    alone, kept = home / "runs" / "alone", home / "runs" / "kept"
    ended(home)
    for name in (*clean_files.FILES, clean_files.NOTE):
        (kept / name).unlink(missing_ok=True)
        if (alone / name).exists():
            shutil.copy2(alone / name, kept / name)
    folded.clear()
    assert rows(home) == []
    assert folded == ["kept"]


@pytest.mark.parametrize("why", ["no key", "a folder in its place", "a long journal"])
def test_what_cannot_be_noted_is_checked_later(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, folded: list[str], why: str
) -> None:
    alone = home / "runs" / "alone"
    if why == "no key":
        no_key(home, monkeypatch)
    elif why == "a folder in its place":
        (alone / clean_files.NOTE).mkdir()
    else:
        monkeypatch.setattr(check, "_MOST_BYTES", (alone / JOURNAL).stat().st_size - 1)
    check.check_end(alone, load(alone))
    assert not (alone / clean_files.NOTE).is_file()
    assert sorted(path.name for path in alone.glob("*.tmp")) == []
    folded.clear()
    assert rows(home) == []
    assert "alone" in folded
    assert caplog.messages == []


def test_nothing_is_noted_by_code_that_has_changed_since_it_was_loaded(
    home: Path, monkeypatch: pytest.MonkeyPatch, folded: list[str]
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(clean_files, "_code", clean_files._code.__wrapped__)
        patched.setattr(clean_files, "LOADED_NS", Path(clean_files.__file__).stat().st_ctime_ns)
        every = [folder.name for folder in ended(home)]
    assert (rows(home), folded) == ([], every * 2)


def test_files_that_change_while_they_are_checked_at_the_end_are_not_noted(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = home / "runs" / "alone"

    def then_damaged(path: Path) -> Record:
        record = fold(path)
        (alone / RECORD).write_bytes((alone / RECORD).read_bytes().replace(b"cpu", b"gpu", 1))
        return record

    monkeypatch.setattr(check, "fold", then_damaged)
    monkeypatch.setattr(check, "_own_problems", lambda *of: [])
    check.check_end(alone, load(alone))
    assert not (alone / clean_files.NOTE).exists()


def test_a_run_that_contradicts_itself_says_so_at_its_end(
    dpexp_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    facts = {"strategy": "sin\x1b[2Jgle", "execution": "real"}
    journal = journals.complete(dpexp_home / "runs", "odd", **facts)
    check.check_end(journal.parent, finish(journal))
    (text,) = caplog.messages
    assert "\x1b" not in text
    assert "run odd: " in text
    assert f"and {len(check.record_problems(journal.parent)) - 1} more; " in text
    assert text.endswith("runs.py check odd shows it")
    assert "strategy is sin\\u001b[2Jgle, but its config says whole" in text
    assert not (journal.parent / clean_files.NOTE).exists()


def test_an_error_of_the_check_at_the_end_is_said_and_ends_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(journal: Path) -> Record:
        raise JournalError(f"{journal} cannot be read")

    monkeypatch.setattr(check, "fold", fails)
    check.check_end(home / "runs" / "alone", Record())
    (text,) = caplog.messages
    assert "run alone: its files could not be checked: JournalError" in text


def test_the_first_check_after_a_run_folds_nothing(dpexp_home: Path, folded: list[str]) -> None:
    dpexp.run("single", steps=3, phase_steps=2, track=False, quiet=True)
    (run,) = folders(dpexp_home / "runs")
    assert folded == [run.name]
    assert rows(dpexp_home) == []
    assert folded == [run.name]
    assert (run / clean_files.NOTE).stat().st_mode & 0o077 == 0
