"""The profiler's trace of a run: a missing, cut or changed one is named, and an imported run has its own."""

from pathlib import Path

import journals
import pytest

from dpexp.record.journal.fold import finish
from dpexp.record.journal.journal import JOURNAL
from dpexp.record.profiler_trace import PROFILER_TRACE, write_trace
from dpexp.record.runs.check import record_problems
from dpexp.record.runs.import_journals import import_journal


@pytest.fixture
def folder(dpexp_home: Path) -> Path:
    """A run that has ended, with a trace."""
    journal = journals.begin(dpexp_home / "runs", "profiled")
    journal.set({"work.operators": {"trace": write_trace(journal.folder, b'{"traceEvents":[]}')}})
    finish(journals.end(journal))
    return journal.folder


def problems(folder: Path) -> list[tuple[str, str, str]]:
    return [(each.kind, each.what, each.repair) for each in record_problems(folder)]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "missing"),
        (b'{"traceEvents":[', "16 bytes instead of 18"),
        (b'{"traceEvents":{}}', "its bytes have changed since it was written"),
    ],
)
def test_a_trace_that_is_not_as_written_is_named(folder: Path, content: bytes | None, what: str) -> None:
    assert problems(folder) == []
    (folder / PROFILER_TRACE).unlink()
    if content is not None:
        (folder / PROFILER_TRACE).write_bytes(content)
    assert problems(folder) == [("record", f"{PROFILER_TRACE}: {what}", "")]


def test_a_trace_is_for_its_owner_alone(folder: Path) -> None:
    assert (folder / PROFILER_TRACE).stat().st_mode & 0o777 == 0o600


def test_an_imported_run_has_its_trace(folder: Path, tmp_path: Path) -> None:
    imported = import_journal(folder / JOURNAL, tmp_path / "runs")
    assert problems(imported) == []
