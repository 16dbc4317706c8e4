"""History: all runs as comparisons, the newest first.

Runs that belong together are those of a sweep, and runs that were started one by one and do the same work on
the same machine. ``report`` shows one comparison, and each of the others in one line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.cells import cell_len

from dpexp.config.printable import printable_line
from dpexp.config.ranges import plural
from dpexp.record.files import JournalError
from dpexp.record.journal import SWEEP_STRATEGY
from dpexp.record.record import Record
from dpexp.record.runs import folders
from dpexp.report.compare import GroupKeys
from dpexp.report.listing import prefixes, shortened
from dpexp.report.section import Section

_MOST, _WIDTH = 20, 78
"""Other comparisons that are listed, and the columns of a line, without its indent of two."""


@dataclass
class Related:
    """Runs that belong together. ``run_id`` is that of their sweep, else of the newest of them."""

    sweep: Record | None = None
    folders: list[Path] = field(default_factory=list)
    configs: set[str] = field(default_factory=set)
    newest: Record = field(default_factory=Record)

    @property
    def run_id(self) -> str:
        return (self.sweep or self.newest).run_id

    @property
    def started(self) -> str:
        return self.newest.started

    @property
    def title(self) -> str:
        """What was swept, or the names of the work of runs that were started one by one."""
        if self.sweep is not None:
            return str(self.sweep.config.get("question") or self.sweep.name)
        config = self.newest.config
        name = self.newest.name or self.newest.strategy or self.newest.status
        work = f"{config.get('model')}, {config.get('data')}" if config else ""
        return ", ".join(filter(None, [name if len(self.folders) == 1 else "", work]))

    def add(self, folder: Path, record: Record, config: str) -> None:
        self.folders.append(folder)
        self.configs.add(config)
        if record.started >= self.newest.started:
            self.newest = record


@dataclass(frozen=True)
class History:
    """The comparisons, the newest first, and the runs that cannot be read, each with the reason."""

    comparisons: list[Related]
    unreadable: list[tuple[str, str]]

    @property
    def newest(self) -> Related:
        """The newest with several configs, else the newest; an empty one if no run can be read."""
        several = (one for one in self.comparisons if len(one.configs) > 1)
        return next(several, next(iter(self.comparisons), Related()))

    def expanded(self, folder: Path, is_only: bool) -> list[Path]:
        """The runs of a sweep's folder; of a run that ``is_only`` one named, those that belong with it."""
        for one in self.comparisons:
            is_sweep = one.sweep is not None and one.sweep.run_id == folder.name
            if is_sweep or (is_only and folder in one.folders):
                return one.folders
        return [folder]


def is_sweep(folder: Path) -> bool:
    """Whether the folder is that of a sweep, which stands for its runs; False where it cannot be read."""
    try:
        return Record.load(folder).strategy == SWEEP_STRATEGY
    except JournalError:  # which the comparison reports
        return False


def history(runs: Path) -> History:
    """Read all runs of a home."""
    keys, unreadable = GroupKeys(), []
    found: dict[object, Related] = {}
    for folder in folders(runs):
        try:
            record = Record.load(folder)
        except JournalError as error:
            unreadable.append((folder.name, str(error)))
            continue
        if record.strategy == SWEEP_STRATEGY:
            found.setdefault(record.run_id, Related()).sweep = record
            continue
        (_, *same), config = keys.of(record)
        key = record.parent or tuple(same)
        found.setdefault(key, Related()).add(folder, record, config)
    begun = [one for one in found.values() if one.folders]
    return History(sorted(begun, key=lambda one: one.started, reverse=True), unreadable)


def others(comparisons: Sequence[Related], command: str) -> Section:
    """A line for each comparison, at most ``_WIDTH`` columns long, with its date and run id."""
    every = (folder.name for one in comparisons for folder in one.folders)
    ids = prefixes([one.run_id for one in comparisons], every)
    lines = [_line(one, run_id) for one, run_id in zip(comparisons[:_MOST], ids, strict=False)]
    if len(comparisons) > _MOST:
        lines.append(f"… and {len(comparisons) - _MOST} older ones")
    return Section("Other comparisons", (*lines, f"to show one: {command} RUN"))


def _line(one: Related, run_id: str) -> str:
    counts = f"{plural(len(one.folders), 'run')}, {plural(len(one.configs), 'config')}"
    begin = f"{one.started[:16].replace('T', ' '):16}  {run_id}  {counts:18}  "
    return begin + shortened(printable_line(one.title), _WIDTH - cell_len(begin))
