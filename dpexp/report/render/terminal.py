"""The story of a run in a terminal, by rich, which Typer brings along.

Colour only where it is asked for and NO_COLOR is not set; as wide as the terminal, or 100 columns
where there is none.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from dpexp.report import units
from dpexp.report.analysis.phases import Phase
from dpexp.report.figures.palette import color as phase_color
from dpexp.report.sections import Section, Table

MOODS = {"good": "bold green", "bad": "bold red", "warn": "bold yellow"}
PLAIN = str.maketrans({"█": "#", "·": ".", "…": "...", "×": "x", "µ": "u"})
NARROWEST, WIDEST, PIPED, WIDE = 40, 160, 100, 180


def text(
    sections: Sequence[Section], *, width: int | None = None, color: bool | None = None, piped: int = PIPED
) -> str:
    """The sections as text, ``width`` columns wide, with ANSI colours where asked for or at a terminal."""
    colored = color if color is not None else _takes_color(sys.stdout)
    colored = colored and not os.environ.get("NO_COLOR")
    console = Console(
        file=io.StringIO(),
        width=max(NARROWEST, width or columns(sys.stdout, piped)),
        force_terminal=colored,
        color_system="truecolor" if colored else None,
        highlight=False,
        legacy_windows=False,
    )
    with console.capture() as captured:
        for section in sections:
            console.print(render(section, console.width))
    lines = "\n".join(line.rstrip() for line in captured.get().rstrip().split("\n"))
    return encodable(lines, sys.stdout.encoding or "utf-8")


def encodable(words: str, encoding: str) -> str:
    """The words in characters that the encoding has: a terminal in ASCII gets ``#`` for bars."""
    try:
        words.encode(encoding)
    except UnicodeEncodeError:
        return words.translate(PLAIN).encode(encoding, "replace").decode(encoding)
    return words


def _takes_color(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def columns(stream: TextIO, piped: int = PIPED) -> int:
    """The width to write for: the terminal's within reason, COLUMNS where it is set, ``piped`` for a pipe."""
    if not stream.isatty() and "COLUMNS" not in os.environ:
        return piped
    return min(WIDEST, shutil.get_terminal_size((PIPED, 24)).columns)


def render(section: Section, width: int) -> RenderableType:
    """One section as rich shows it: the title, then everything else set in by two."""
    body: list[RenderableType] = [Text(line) for line in section.lines]
    if section.title == "Findings":
        body = [_bullet(line) for line in section.lines]
    if section.bars:
        body.append(_bars(section.bars, width))
    if section.table is not None and section.table.rows:
        body.append(_fitting(section.table, width - 2))
        if section.table.more:
            body.append(Text(f"… and {section.table.more} more rows, in MLflow's tables", style="dim"))
    if section.commands:
        body.append(_commands(section.commands))
    return Group(
        Text(section.title, style=MOODS.get(section.mood, "bold")), Padding(Group(*body), (0, 0, 1, 2))
    )


def _bullet(line: str) -> RenderableType:
    grid = Grid.grid(padding=(0, 1))
    grid.add_row("-", Text(line))
    return grid


def _grid(table: Table) -> RenderableType:
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in table.columns:
        grid.add_column(column, overflow="fold")
    for row in table.rows:
        grid.add_row(*map(Text, row))
    return grid


def _fitting(table: Table, width: int) -> RenderableType:
    """The table where every row is at most two lines high, else a list of its rows."""
    longest = [max(map(len, column)) for column in zip(table.columns, *table.rows, strict=True)]
    return _grid(table) if sum(longest) + 2 * len(longest) <= 1.4 * width else _list(table)


def _list(table: Table) -> RenderableType:
    """A table for a narrow terminal: a line a row, a first word that equals the one above left out."""
    lines: list[RenderableType] = []
    above = ""
    for row in table.rows:
        if row[0] != above:
            lines.append(Text(row[0], style="dim"))
            above = row[0]
        told = (f"{column} {word}" for column, word in zip(table.columns[1:], row[1:], strict=True))
        lines.append(Padding(Text("; ".join(told)), (0, 0, 0, 2)))
    return Group(*lines)


def _bars(bars: Sequence[Phase], width: int) -> RenderableType:
    room = max(6, min(40, width - 52))
    grid = Grid.grid(padding=(0, 2, 0, 0))
    for bar in bars:
        length = min(room, max(1, round(bar.share * room)))
        grid.add_row(
            Text("  " * bar.depth + bar.name),
            Text("█" * length, style=phase_color(bar.name)) + Text("·" * (room - length), style="dim"),
            Text(units.percent(bar.share), justify="right"),
            Text(f"{units.ms(bar.median)} [IQR {units.ms(bar.iqr)}]"),
        )
    return grid


def _commands(commands: Sequence[tuple[str, str]]) -> RenderableType:
    grid = Grid.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for what, line in commands:
        grid.add_row(Text(what, style="dim"), Text(line))
    return grid
