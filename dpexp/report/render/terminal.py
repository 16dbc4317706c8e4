"""Terminal: report sections as text, laid out by rich, a dependency of Typer.

Colour is used only on request or at a terminal, and never if NO_COLOR is set. The text is as wide as the
terminal, or 100 columns without one.
"""

import io
import os
import shutil
import sys
from collections.abc import Sequence
from itertools import groupby

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from dpexp.config.printable import printable, printable_line
from dpexp.record.figures.phase_times import Phase
from dpexp.report import units
from dpexp.report.analysis.phases import is_visible, phase_text
from dpexp.report.figures.palette import color as phase_color
from dpexp.report.section import Section, Table

MOODS = {"good": "bold #00865c", "bad": "bold #d83a34", "warn": "bold #a96500"}
"""Styles of titles: green, red and amber, each legible on white and on black."""
ASCII = str.maketrans({"█": "#", "·": ".", "…": "...", "×": "x", "µ": "u", "±": "+-"})
NARROWEST, _WIDEST, PIPED, WIDE = 40, 160, 100, 180


def terminal_text(
    sections: Sequence[Section], *, width: int | None = None, color: bool | None = None, piped: int = PIPED
) -> str:
    """The sections as text, ``width`` columns wide; ``piped`` is the width without a terminal."""
    if color is None:
        color = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    colored = color and not os.environ.get("NO_COLOR")
    console = Console(
        file=io.StringIO(),
        width=max(NARROWEST, width or terminal_width(piped)),
        force_terminal=colored,
        color_system="truecolor" if colored else None,
        highlight=False,
        legacy_windows=False,
    )
    lines = [line for section in sections for line in _lines(section, console)]
    return encodable("\n".join(lines).rstrip())


def _lines(section: Section, console: Console) -> list[str]:
    """The lines of a section: its title, at most ``most`` others, an empty one."""
    with console.capture() as captured:
        console.print(_section(section, console.width))
    lines = [line.rstrip() for line in captured.get().rstrip().split("\n")]
    if section.most and len(lines) > section.most + 1:
        rest = len(lines) - section.most
        lines[section.most :] = [f"  … {rest} more lines: --full"]
    return [*lines, ""]


def encodable(text: str) -> str:
    """The text in characters that stdout's encoding has: a terminal in ASCII gets ``#`` for bars."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(ASCII).encode(encoding, "replace").decode(encoding)
    return text


def terminal_width(piped: int) -> int:
    """The terminal's width, 160 at most; COLUMNS if it is set; or ``piped`` without a terminal."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return piped
    return min(_WIDEST, shutil.get_terminal_size((PIPED, 24)).columns)


def _section(section: Section, width: int) -> RenderableType:
    """The title, then everything else indented by two."""
    body: list[RenderableType] = [_text(line) for line in section.lines]
    if section.title == "Findings":
        body = [_bullet(line) for line in body]
    if section.bars:
        body.append(_bars(section.bars, width))
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
    """The table if it folds or each of its rows needs at most two lines, else a list of its rows."""
    longest = [max(map(len, column)) for column in zip(table.columns, *table.rows, strict=True)]
    if not table.folds and sum(longest) + 2 * len(longest) > 1.4 * width:
        return _list(table)
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in table.columns:
        grid.add_column(_text(column), overflow="fold")
    for row in table.rows:
        grid.add_row(*map(_text, row))
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


def _bars(bars: Sequence[Phase], width: int) -> RenderableType:
    names, texts = (
        max(map(len, each)) for each in ([*map(_indented, bars)], [phase_text(bar) for bar in bars])
    )
    longest = max(6, min(40, width - names - texts - 15))  # 2 of indentation, 6 between, 5 of a share
    grid = Grid.grid(padding=(0, 2, 0, 0))
    for bar in bars:
        length = min(longest, max(1, round(bar.share * longest))) if is_visible(bar) else 0
        grid.add_row(
            _text(_indented(bar)),
            Text("█" * length, style=phase_color(bar.name)) + Text("·" * (longest - length), style="dim"),
            Text(units.percent(bar.share), justify="right"),
            _text(phase_text(bar)),
        )
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
