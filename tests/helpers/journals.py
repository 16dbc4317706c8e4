"""Journals of real runs (``tests/records``), written again for tests to read, deliver and damage."""

from pathlib import Path
from typing import Any

from dpexp.record.fold import fold
from dpexp.record.journal import JOURNAL, Journal, JournalReader, new_run_id, now
from dpexp.record.record import Record

WRITTEN = Path(__file__).parents[1] / "records"


def record(name: str) -> Record:
    """The Record of a run in ``tests/records``, for a test to change."""
    return fold(WRITTEN / name / JOURNAL)


def lines_of(name: str) -> list[dict[str, Any]]:
    """What the lines of its journal set: the facts of the start, what was observed, …, the end."""
    return [entry.get("set", {}) for entry in JournalReader(WRITTEN / name / JOURNAL)]


def begin(runs: Path, run_id: str = "", **changes: Any) -> Journal:
    """A new journal with the first line of ``whole``, and these changes of it; flushed."""
    journal = Journal(runs, run_id or new_run_id())
    facts = {key: value for key, value in lines_of("whole")[0].items() if key not in ("run_id", "started")}
    journal.set(facts | changes)
    journal.flush()
    return journal


def observe(journal: Journal) -> None:
    """Verification, devices, shapes and the device map; flushed."""
    journal.set(lines_of("whole")[1])
    journal.flush()


def step(journal: Journal, first: int, count: int) -> None:
    """``count`` measured steps from number ``first``, with values derived from their number; flushed."""
    numbers = range(first, first + count)
    journal.extend(
        {
            "steps.time_ms": [1.0 + number / 1000 for number in numbers],
            "steps.loss": [1 / (1 + number) for number in numbers],
            "steps.samples": [30 for _ in numbers],
        }
    )
    journal.flush()


def phases(journal: Journal) -> None:
    """What is measured after the steps, and one metric by epoch; flushed."""
    for line in lines_of("whole")[2:-1]:
        journal.set(line)
    journal.extend({"metrics.accuracy": [0.5, 0.75]})
    journal.flush()


def end(journal: Journal, status: str = "finished", error: dict[str, str] | None = None) -> Path:
    """Write how the run ended and close the journal; returns its path."""
    journal.set(status=status, ended=now(), error=error)
    journal.close()
    return journal.path


def complete(runs: Path, run_id: str = "", *, steps: int = 100, **changes: Any) -> Path:
    """The journal of a finished run, with 25 steps a line."""
    journal = begin(runs, run_id, **changes)
    observe(journal)
    for first in range(0, steps, 25):
        step(journal, first, min(25, steps - first))
    phases(journal)
    return end(journal)
