"""History: all runs as comparisons, the newest first.

Runs that belong together are those of a sweep, and runs that were started one by one and do the same work on
the same machine. ``report.py`` shows one comparison, and each of the others in one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dpexp.record.files import JournalError
from dpexp.record.journal import SWEEP_STRATEGY
from dpexp.record.record import Record
from dpexp.record.runs import folders
from dpexp.report.compare import config_key, group_key
from dpexp.report.listing import prefixes
from dpexp.report.section import Section, Table

_MOST = 20
"""Other comparisons that are listed."""


@dataclass
class Related:
    """Runs that belong together, by their folders, and the sweep that made them."""

    sweep: Record | None = None
    runs: dict[Path, Record] = field(default_factory=dict)

    @property
    def newest(self) -> Record:
        return max(self.runs.values(), key=lambda record: record.started)

    @property
    def run_id(self) -> str:
        """The id of the sweep, else of the newest run."""
        return (self.sweep or self.newest).run_id

    @property
    def configs(self) -> int:
        """How many configs ran."""
        return len(set(map(config_key, self.runs.values())))

    @property
    def title(self) -> str:
        """What was swept, the name of a single run, or the work of runs that were started one by one."""
        if self.sweep is not None:
            return str(self.sweep.config.get("question") or self.sweep.name)
        newest = self.newest
        if len(self.runs) == 1:
            return newest.name or newest.strategy or newest.status
        return f"{newest.config.get('model')}, {newest.config.get('data')}"


def history(runs: Path) -> tuple[list[Related], list[tuple[str, str]]]:
    """The comparisons of a home, the newest first, and the runs that cannot be read, with the reasons."""
    unreadable, found = [], dict[object, Related]()
    for folder in folders(runs):
        try:
            record = Record.load(folder)
        except JournalError as error:
            unreadable.append((folder.name, str(error)))
            continue
        if record.strategy == SWEEP_STRATEGY:
            found.setdefault(record.run_id, Related()).sweep = record
            continue
        key = group_key(record)
        found.setdefault(record.parent or (key.machine, key.work), Related()).runs[folder] = record
    begun = [one for one in found.values() if one.runs]
    return sorted(begun, key=lambda one: one.newest.started, reverse=True), unreadable


def others(comparisons: Sequence[Related], command: str) -> Section:
    """A line for each comparison, with its date and run id."""
    every = (folder.name for one in comparisons for folder in one.runs)
    ids = prefixes([one.run_id for one in comparisons], every)
    rows = [
        (one.newest.started[:16].replace("T", " "), run_id, str(len(one.runs)), str(one.configs), one.title)
        for one, run_id in zip(comparisons[:_MOST], ids, strict=False)
    ]
    columns = ("started", "run", "runs", "configs", "compared")
    table = Table(columns, tuple(rows), len(comparisons) - len(rows))
    return Section("Other comparisons", (f"to show one: {command} RUN",), table=table)
