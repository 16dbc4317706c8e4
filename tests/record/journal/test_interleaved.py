"""What another process does between any two system calls of a journal's writer.

Each case is tried with the other process at every such moment in turn; ``sys.setprofile`` runs it there.
"""

import fcntl
import itertools
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import journals
import pytest

from dpexp.record.journal.fold import fold
from dpexp.record.journal.journal import JOURNAL, Journal
from dpexp.record.record import JournalError

Other = Callable[[], AbstractContextManager[None]]


def moments(other: Other) -> Iterator[AbstractContextManager[None]]:
    """A context for each system call made within: ``other`` is entered before it, left before the next."""
    for moment in itertools.count():
        happened: list[bool] = []
        yield _at(moment, other, happened)
        if not happened:
            assert moment > 10, "system calls were not seen"
            return


@contextmanager
def _at(moment: int, other: Other, happened: list[bool]) -> Generator[None, None, None]:
    calls = itertools.count()
    with ExitStack() as entered:

        def before_call(frame: Any, event: str, function: Any) -> None:
            if event != "c_call" or getattr(function, "__module__", "") not in ("posix", "_io", "fcntl"):
                return
            call = next(calls)
            if call == moment:
                happened.append(True)
                entered.enter_context(other())
            elif call == moment + 1:
                entered.close()

        sys.setprofile(before_call)
        try:
            yield
        finally:
            sys.setprofile(None)


def create(runs: Path, run_id: str) -> str:
    """What a process that creates the run's journal prints."""
    try:
        with Journal(runs, run_id) as journal:
            journal.set(name="mine")
    except JournalError as error:
        return str(error)
    return "created"


@contextmanager
def reads(folder: Path) -> Generator[None, None, None]:
    """A process that asks whether the run's writer is alive, and has its lock for that moment."""
    try:
        with open(folder / JOURNAL, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            yield
    except (FileNotFoundError, BlockingIOError):
        yield


@pytest.mark.parametrize(("run_id", "created"), [("same", 1), ("another", 2)])
def test_two_processes_create_journals_in_a_new_home(tmp_path: Path, run_id: str, created: int) -> None:
    runs = tmp_path
    results: list[str] = []

    @contextmanager
    def creates() -> Generator[None, None, None]:
        results.append(create(runs, run_id))
        yield

    for number, moment in enumerate(moments(creates)):
        results.clear()
        runs = tmp_path / str(number) / "home" / "runs"
        runs.parent.parent.mkdir()
        with moment:
            results.append(create(runs, "same"))
        refused = [text for text in results if text != "created"]
        assert results.count("created") == (created if len(results) == 2 else 1), results
        assert all("this run has a journal already" in text for text in refused)
        assert fold(runs / "same" / JOURNAL).name == "mine"


def test_a_reader_does_not_keep_a_journal_from_its_writer(tmp_path: Path) -> None:
    folder = tmp_path

    def other() -> AbstractContextManager[None]:
        return reads(folder)

    for number, moment in enumerate(moments(other)):
        folder = tmp_path / "runs" / str(number)
        with moment:
            assert create(folder.parent, folder.name) == "created"


def test_a_reader_does_not_keep_a_journal_from_the_writer_that_resumes(tmp_path: Path) -> None:
    journals.begin(tmp_path, "run").close()
    for moment in moments(lambda: reads(tmp_path / "run")):
        with moment, Journal.reopen(tmp_path / "run") as journal:
            journal.set(name="resumed")
    assert fold(tmp_path / "run" / JOURNAL).name == "resumed"
