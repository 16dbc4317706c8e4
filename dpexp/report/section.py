"""Section: one part of a report, independent of the format."""

from dataclasses import dataclass, replace
from typing import NamedTuple

LINES, ROWS = 4, 7
"""The most lines, and rows, of a section that a short report cuts, that which counts the others included."""


@dataclass(frozen=True)
class Table:
    """Columns and rows of text; ``more`` counts the rows that were left out."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: int = 0


class Bar(NamedTuple):
    """A bar of a section: its name, indented by its depth, its share of the longest, and text beside it."""

    name: str
    share: float
    text: str
    color: str


@dataclass(frozen=True)
class Section:
    """One part of a report. ``mood`` is good, bad, warn or empty; ``commands`` are (purpose, command)."""

    title: str
    lines: tuple[str, ...] = ()
    mood: str = ""
    table: Table | None = None
    bars: tuple[Bar, ...] = ()
    commands: tuple[tuple[str, str], ...] = ()


def short_section(section: Section | None) -> Section | None:
    """The section with at most ``LINES`` lines and ``ROWS`` rows."""
    if section is None:
        return None
    lines, table = section.lines, section.table
    if len(lines) > LINES:
        lines = (*lines[: LINES - 1], f"… and {len(lines) - LINES + 1} more lines")
    if table is not None and len(table.rows) > ROWS:
        table = Table(table.columns, table.rows[: ROWS - 1], len(table.rows) - ROWS + 1)
    return replace(section, lines=lines, table=table)
