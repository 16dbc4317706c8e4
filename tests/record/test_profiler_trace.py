"""The profiler's trace of a run is for its owner alone, and an imported run has its own."""

from pathlib import Path

import journals

from dpexp.record.files import PROFILER_TRACE, write_atomically
from dpexp.record.journal import JOURNAL
from dpexp.record.runs import import_journal


def test_an_imported_run_has_its_trace(runs: Path, tmp_path: Path) -> None:
    folder = journals.complete(runs, "profiled").parent
    write_atomically(folder / PROFILER_TRACE, b'{"traceEvents":[]}')
    assert (folder / PROFILER_TRACE).stat().st_mode & 0o777 == 0o600
    imported = import_journal(folder / JOURNAL, tmp_path / "runs")
    assert (imported / PROFILER_TRACE).read_bytes() == b'{"traceEvents":[]}'
