"""Terminal: report sections as text, laid out by rich, a dependency of Typer.

Colour is used only on request or at a terminal, and never if NO_COLOR is set. The text is as wide as the
terminal, or 100 columns without one.
"""

import contextlib
import io
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

from dpexp.config.printable import printable, printable_line
from dpexp.record.phases import Phase
from dpexp.report import units
from dpexp.report.section import Section, Table
from dpexp.report.units import is_visible, phase_text

MOODS = {"good": "bold #00865c", "bad": "bold #d83a34", "warn": "bold #a96500"}
"""Styles of titles: green, red and amber, each legible on white and on black."""
ASCII = str.maketrans({"█": "#", "·": ".", "…": "...", "×": "x", "µ": "u", "±": "+-"})
NARROWEST, PIPED, WIDE, _GAP, _SHORTEST_BAR = 40, 100, 180, 2, 6


def terminal_text(
    sections: Sequence[Section],
    *,
    width: int | None = None,
    color: bool | None = None,
    piped: int = PIPED,
    stream: TextIO | None = None,
) -> str:
    """The sections as text for a stream (default: stdout), ``width`` columns wide, by default its terminal's.

    ``piped`` is the width without a terminal.
    """
    stream = stream or sys.stdout
    if color is None:
        color = stream.isatty() and os.environ.get("TERM") != "dumb"
    colored = color and not os.environ.get("NO_COLOR")
    console = Console(
        file=io.StringIO(),
        width=max(NARROWEST, width or terminal_width(piped, stream)),
        force_terminal=colored,
        color_system="truecolor" if colored else None,
        highlight=False,
        legacy_windows=False,
    )
    lines = [line for section in sections for line in _lines(section, console)]
    return encodable("\n".join(lines).rstrip(), stream)


def _lines(section: Section, console: Console) -> list[str]:
    """The lines of a section: its title, at most ``most`` others, an empty one."""
    with console.capture() as captured:
        console.print(_section(section, console.width))
    lines = [line.rstrip() for line in captured.get().rstrip().split("\n")]
    if section.most and len(lines) > section.most + 1:
        rest = len(lines) - section.most
        lines[section.most :] = [f"  … {rest} more lines: --full"]
    return [*lines, ""]


def encodable(text: str, stream: TextIO | None = None) -> str:
    """The text in characters that the stream's encoding has: a terminal in ASCII gets ``#`` for bars."""
    encoding = (stream or sys.stdout).encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(ASCII).encode(encoding, "replace").decode(encoding)
    return text


def terminal_width(piped: int, stream: TextIO | None = None) -> int:
    """COLUMNS if it is set, else the width of the stream's terminal, or ``piped`` where it is not one."""
    stream = stream or sys.stdout
    chosen = os.environ.get("COLUMNS", "")
    if chosen.isdecimal() and int(chosen):
        return int(chosen)
    if not stream.isatty():
        return piped
    with contextlib.suppress(OSError):  # an editor's console calls itself a terminal
        return os.get_terminal_size(stream.fileno()).columns or PIPED
    return PIPED


def _section(section: Section, width: int) -> RenderableType:
    """The title, then everything else indented by two."""
    body: list[RenderableType] = [_text(line) for line in section.lines]
    if section.title == "Findings":
        body = [_bullet(line) for line in body]
    if section.bars:
        body.append(_bars(section, width))
    if section.table is not None and section.table.rows:
        body.append(_table(section.table, width - 2))
        if section.table.more:
            body.append(Text(f"… and {section.table.more} more rows: --full", style="dim"))
    if section.commands:
        body.append(_commands(section.commands))
    title = _text(section.title, style=MOODS.get(section.mood, "bold"))
    return Group(title, Padding(Group(*body), (0, 0, 1, 2)))


def _text(text: str, style: str = "") -> Text:
    """What rich lays out and a terminal shows."""
    return Text(printable(text), style)


def _bullet(line: RenderableType) -> RenderableType:
    grid = Grid.grid(padding=(0, 1))
    grid.add_row("-", line)
    return grid


def _table(table: Table, width: int) -> RenderableType:
    """The table if it folds or each of its rows needs at most two lines, else a list of its rows.

    A cell is wrapped between its words: where a column lacks the room for one, the table is a list, too.
    """
    rows = [[_text(cell) for cell in row] for row in (table.columns, *table.rows)]
    columns = list(zip(*rows, strict=True))
    longest = [max(cell.cell_len for cell in column) for column in columns]
    words = [max(map(cell_len, " ".join(cell.plain for cell in column).split())) for column in columns]
    room = width - _GAP * (len(columns) - 1)
    if sum(words) > room or (not table.folds and sum(longest) + _GAP * len(longest) > 1.4 * width):
        return _list(table)
    grid = Grid(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for title, column_width in zip(rows[0], _fitted(longest, words, room), strict=True):
        grid.add_column(title, overflow="fold", width=column_width)
    for row in rows[1:]:
        grid.add_row(*row)
    return grid


def _fitted(widths: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """The widths of columns that together have so much room: the widest gives way first, to its ``least``."""
    fits = (
        found
        for most in range(room, 0, -1)
        if sum(found := [max(low, min(width, most)) for width, low in zip(widths, least, strict=True)])
        <= room
    )
    return next(fits, list(least))


def _list(table: Table) -> RenderableType:
    """A table for a narrow terminal: a line for each row, under a heading for each new first cell."""
    lines: list[RenderableType] = []
    for heading, rows in groupby(table.rows, key=lambda row: row[0]):
        lines.append(_text(heading, style="dim"))
        for _, *cells in rows:
            facts = (f"{column} {cell}" for column, cell in zip(table.columns[1:], cells, strict=True))
            lines.append(Padding(_text("; ".join(facts)), (0, 0, 0, 2)))
    return Group(*lines)


def _bars(section: Section, width: int) -> RenderableType:
    """A line for each phase; a narrow terminal has no room for the bars themselves."""
    bars = section.bars
    names, texts = (
        max(map(len, each)) for each in ([*map(_indented, bars)], [phase_text(bar) for bar in bars])
    )
    longest = min(40, width - names - texts - 15)  # 2 of indentation, 6 between, 5 of a share
    grid = Grid.grid(padding=(0, _GAP, 0, 0))
    grid.add_column(no_wrap=names <= width // 2, overflow="fold")
    for bar in bars:
        length = min(longest, max(1, round(min(1.0, bar.share) * longest))) if is_visible(bar) else 0
        full, empty = "█" * length, "·" * (longest - length)
        drawn = Text(full, style=section.colors[bar.name]) + Text(empty, style="dim")
        share = Text(units.percent(bar.share), justify="right")
        cells = (drawn, share) if longest >= _SHORTEST_BAR else (share,)
        grid.add_row(_text(_indented(bar)), *cells, _text(phase_text(bar)))
    return grid


def _indented(bar: Phase) -> str:
    return "  " * bar.depth + printable_line(bar.name)


def _commands(commands: Sequence[tuple[str, str]]) -> RenderableType:
    grid = Grid.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for what, line in commands:
        grid.add_row(_text(what, style="dim"), _text(line))
    return grid
