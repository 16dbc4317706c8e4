"""Terminal: report sections as text, laid out by rich, a dependency of Typer.

rich finds out how wide a terminal is and whether it has colours (COLUMNS, NO_COLOR and FORCE_COLOR say
otherwise). Without a terminal the text is 100 columns wide.
"""

import os
import sys
from collections.abc import Sequence
from itertools import groupby
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from dpexp.config.printable import printable
from dpexp.report import units
from dpexp.report.section import Bar, Section, Table

MOODS = {"good": "bold #00865c", "bad": "bold #d83a34", "warn": "bold #a96500"}
"""Styles of titles: green, red and amber, each legible on white and on black."""
PIPED, WIDE, _GAP, _LONGEST_BAR, _SHORTEST_BAR = 100, 180, 2, 40, 6


def terminal_text(
    sections: Sequence[Section], *, width: int | None = None, piped: int = PIPED, stream: TextIO | None = None
) -> str:
    """The sections as text for a stream (default: stdout), ``width`` columns wide, by default its terminal's.

    ``piped`` is the width without a terminal.
    """
    stream = stream or sys.stdout
    is_terminal = stream.isatty() or os.environ.get("COLUMNS")
    width = width or (Console(file=stream).width if is_terminal else piped)
    console = Console(file=stream, width=width, highlight=False, force_jupyter=False)
    with console.capture() as captured:
        for section in sections:
            console.print(_section(section, width))
    return "\n".join(line.rstrip() for line in captured.get().rstrip().split("\n"))


def _section(section: Section, width: int) -> RenderableType:
    body: list[RenderableType] = [_text(line) for line in section.lines]
    if section.title == "Findings":
        body = [_grid([(Text("-"), line)], gap=1) for line in body]
    if section.bars:
        body.append(_bars(section.bars, width))
    if section.table is not None and section.table.rows:
        body.append(_table(section.table, width - 2))
        if section.table.more:
            body.append(Text(f"… and {section.table.more} more rows", style="dim"))
    if section.commands:
        body.append(_grid([(_text(what, style="dim"), _text(line)) for what, line in section.commands]))
    title = _text(section.title, style=MOODS.get(section.mood, "bold"))
    return Group(title, Padding(Group(*body), (0, 0, 1, 2)))


def _text(text: str, style: str = "") -> Text:
    """What rich lays out and a terminal shows."""
    return Text(printable(text), style)


def _grid(rows: Sequence[Sequence[RenderableType]], gap: int = _GAP, wraps: bool = False) -> Grid:
    """Rows without a heading, of whose first cells only those that must are wrapped."""
    grid = Grid.grid(padding=(0, gap, 0, 0))
    grid.add_column(no_wrap=not wraps, overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return grid


def _table(table: Table, width: int) -> RenderableType:
    """The table, its cells wrapped between words; a list of its rows where words have little room."""
    rows = [[_text(cell) for cell in row] for row in (table.columns, *table.rows)]
    columns = zip(*rows, strict=True)
    words = [max(map(cell_len, " ".join(cell.plain for cell in column).split())) for column in columns]
    if sum(words) + _GAP * (len(words) - 1) > 0.8 * width:
        return _list(table)
    grid = Grid(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for title, longest in zip(rows[0], words, strict=True):
        grid.add_column(title, overflow="fold", min_width=longest)
    for row in rows[1:]:
        grid.add_row(*row)
    return grid


def _list(table: Table) -> RenderableType:
    """A table for a narrow terminal: a line for each row, under a heading for each new first cell."""
    lines: list[RenderableType] = []
    for heading, rows in groupby(table.rows, key=lambda row: row[0]):
        lines.append(_text(heading, style="dim"))
        for _, *cells in rows:
            facts = (f"{column} {cell}" for column, cell in zip(table.columns[1:], cells, strict=True))
            lines.append(Padding(_text("; ".join(facts)), (0, 0, 0, 2)))
    return Group(*lines)


def _bars(bars: Sequence[Bar], width: int) -> RenderableType:
    """A line for each bar; a narrow terminal has no room for the bars themselves."""
    names, texts = max(cell_len(bar.name) for bar in bars), max(cell_len(bar.text) for bar in bars)
    longest = min(_LONGEST_BAR, width - names - texts - 15)  # 2 of indentation, 6 between, 5 of a share
    rows = []
    for bar in bars:
        length = round(min(1.0, bar.share) * longest)
        drawn = Text("█" * length, bar.color) + Text("·" * (longest - length), style="dim")
        share = Text(units.percent(bar.share), justify="right")
        cells = (drawn, share) if longest >= _SHORTEST_BAR else (share,)
        rows.append((_text(bar.name), *cells, _text(bar.text)))
    return _grid(rows, wraps=names > width // 2)
