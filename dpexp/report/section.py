"""Section: one part of a report, independent of the format."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dpexp.record.phases import Phase

ROWS = 14
"""The most rows of a table in a short report."""
LINES = 10
"""The most lines of a section of a short report in a terminal; `--full` has all."""


@dataclass(frozen=True)
class Table:
    """Columns and rows of text; ``more`` counts the rows that were left out.

    On a narrow terminal a table that ``folds`` wraps its cells; any other becomes a list of its rows.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: int = 0
    folds: bool = False


@dataclass(frozen=True)
class Section:
    """One part of a report. ``mood`` is good, bad, warn or empty; ``commands`` are (purpose, command).

    ``colors`` has that of each bar by its name.

    A terminal shows at most ``most`` lines, if that is not 0.
    """

    title: str
    lines: tuple[str, ...] = ()
    mood: str = ""
    table: Table | None = None
    bars: tuple[Phase, ...] = ()
    colors: Mapping[str, str] = field(default_factory=dict)
    commands: tuple[tuple[str, str], ...] = ()
    most: int = 0


def shortest(section: Section) -> Section:
    """The section with at most ``LINES`` lines and ``ROWS`` rows; its commands stay."""
    if section.table is None and not section.bars:
        return section
    table = section.table
    if table is not None:
        table = replace(table, rows=table.rows[:ROWS], more=max(0, len(table.rows) - ROWS))
    return replace(section, table=table, most=LINES)
