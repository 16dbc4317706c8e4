"""Chart: a picture of rows with names, over an axis of times.

::

    title                              TOP
    cpu    ███ ▒▒▒▒                    a row each
    cpu:0       ████████
           0 ms      1 ms              the axis, below the rows or above them
    ▪ forward  ▪ backward              legend
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpexp.report import ticks, units
from dpexp.report.figures.fonts import text_pixels, widest, wrapped
from dpexp.report.figures.picture import Bar, Picture, Text
from dpexp.report.figures.style import INK, LABEL_LETTERS, LINE, SOFT

TITLE, NAMES, AXIS, LEGEND = 11.0, 9.0, 8.0, 8.5
"""The letters of each, in points."""
LEFT = 13
"""The left edge of the title and of the names, in pixels."""
TITLE_LINE, _AXIS_HEIGHT, _GAP = 21, 22, 12
LEAST_TICKS = 5
_MOST_LETTERS = 61


@dataclass(frozen=True)
class Rows:
    """Where the rows of a chart are."""

    picture: Picture
    left: int
    right: int
    top: int
    pitch: int
    ms: float

    def x(self, ms: float) -> float:
        """Where a time is."""
        return self.left + (self.right - self.left) * ms / self.ms

    def y(self, row: float) -> float:
        """The middle of a row; they are counted from 0."""
        return self.top + self.pitch * (row + 0.5)

    def bar(self, row: int, begin: float, end: float, color: str, share: float) -> Bar:
        """Add a bar from one time to another, as high as this share of its row; returns it."""
        half = self.pitch * share / 2
        ends = (self.x(begin), round(self.y(row) - half), self.x(end), round(self.y(row) + half))
        added = Bar((*ends[:2], max(ends[2], ends[0] + 1), ends[3]), color)
        self.picture.add(added)
        return added


def title_lines(text: str, width: int) -> list[str]:
    """A title in as many lines as a picture of this width needs."""
    return wrapped(text, width - 2 * LEFT, TITLE, True)


def add_title(picture: Picture, lines: Sequence[str]) -> None:
    """Write the title above everything."""
    for number, line in enumerate(lines):
        picture.add(Text(LEFT, 18 + TITLE_LINE * number, line, TITLE, is_bold=True))


def names_width(names: Sequence[str]) -> int:
    """What the names of rows take on the left, in pixels."""
    return LEFT + round(widest(short_names(names), NAMES)) + _GAP


def short_names(names: Sequence[str]) -> list[str]:
    """The names of rows, shortened; also those that only many letters keep apart."""
    short = units.short_names(names, LABEL_LETTERS)
    return [each if len(each) <= _MOST_LETTERS else f"{each[:30]}…{each[-30:]}" for each in short]


def rows_of(
    title: str, names: Mapping[int, str], count: int, pitch: int, width: int, ms: float, *,
    right: int, is_axis_above: bool, below: int = 0,
) -> Rows:  # fmt: skip
    """The picture of a chart with its axis and the names of some of its rows.

    ``right`` is the right end of the axis, ``below`` what the picture leaves free below everything.
    """
    lines = title_lines(title, width)
    top = 18 + TITLE_LINE * len(lines) + (_AXIS_HEIGHT if is_axis_above else 0)
    height = top + pitch * count + (0 if is_axis_above else _AXIS_HEIGHT) + _GAP + below
    rows = Rows(Picture(width, height), names_width([*names.values()]), right, top, pitch, ms)
    add_title(rows.picture, lines)
    bottom = top + pitch * count
    _add_axis(rows, bottom, top - 11 if is_axis_above else bottom + 12)
    for row, name in zip(names, short_names([*names.values()]), strict=True):
        rows.picture.add(Text(LEFT, rows.y(row), name, NAMES))
    return rows


def _add_axis(rows: Rows, bottom: int, y: int) -> None:
    """The lower line, and a soft line with its time at each round tick."""
    factor, unit = units.time_unit(rows.ms)
    width = rows.right - rows.left
    for least in range(LEAST_TICKS, 2, -1):  # fewer where they would touch each other
        found = ticks.ticks(0.0, rows.ms, least)
        texts = [f"{tick * factor:,.10g} {unit}" for tick in found]
        if widest(texts, AXIS) + _GAP < width * (found[1] - found[0]) / rows.ms:
            break
    for tick, text in zip(found, texts, strict=True):
        x = round(rows.x(tick))
        rows.picture.add_line((x, rows.top, x + 1, bottom))
        inside = min(x, rows.picture.width - 4 - text_pixels(text, AXIS) / 2)
        rows.picture.add(Text(inside, y, text, AXIS, SOFT, "mm"))
    rows.picture.add_line((rows.left, bottom, rows.right, bottom + 1), LINE)


def legend_lines(colors: Mapping[str, str], width: int) -> list[list[tuple[float, str, str]]]:
    """(left edge in pixels, name, colour) of each colour, in as many lines as they need."""
    lines: list[list[tuple[float, str, str]]] = [[]]
    x = 0.0
    for name, color in zip(short_names([*colors]), colors.values(), strict=True):
        needed = 40 + text_pixels(name, LEGEND)
        if lines[-1] and x + needed > width:
            lines.append([])
            x = 0.0
        lines[-1].append((x, name, color))
        x += needed
    return lines


def add_legend(picture: Picture, lines: Sequence[Sequence[tuple[float, str, str]]], y: int) -> None:
    """The colours from the left, each with its name; ``y`` is the middle of the first line."""
    for number, line in enumerate(lines):
        middle = y + TITLE_LINE * number
        for place, name, color in line:
            x = LEFT + place
            picture.add(Bar((x, middle - 6, x + 13, middle + 7), color, outline=None))
            picture.add(Text(x + 22, middle, name, LEGEND, INK))
