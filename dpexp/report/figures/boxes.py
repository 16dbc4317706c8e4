"""The boxes of layout.png: what is on each device, and where its box stands."""

from dataclasses import dataclass

from dpexp.config.ranges import plural
from dpexp.record.view import RecordView
from dpexp.report import units
from dpexp.report.analysis import layout
from dpexp.report.figures.fonts import DPI, widest
from dpexp.report.figures.picture import Card, Picture, Text, pixels

MOST_BOXES = 8
"""So many devices with copies get a box each; of more, those with the same content share one."""
MOST_MODULES = 10
MOST_LETTERS = 40
"""Longer names of modules are shortened; a box is as wide as its lines."""
LINE_HEIGHT, _PADDING, _GAP = 0.22, 0.16, 0.22
LEAST_WIDTH, INDENT = 2.0, 0.12
_TITLE, LETTERS = 9.5, 8.5


@dataclass(eq=False)
class Box:
    """One device, or several with the same content: its lines, and its place, in inches from above left."""

    devices: list[str]
    lines: list[str]
    column: int
    x: float = 0.0
    top: float = 0.0
    width: float = LEAST_WIDTH
    min_height: float = 0.0

    @property
    def height(self) -> float:
        return max(self.min_height, 2 * _PADDING + LINE_HEIGHT * (1 + len(self.lines)))

    @property
    def middle(self) -> float:
        return self.top + self.height / 2

    @property
    def title(self) -> str:
        count = len(self.devices)
        return units.span(self.devices) + (f"  ({count} devices, each:)" if count > 1 else "")


def boxes_of(view: RecordView) -> list[Box]:
    """The boxes of a Record, which have no place yet."""
    rows, used = _rows(view), view.record.devices["used"]
    boxes: list[Box] = []
    for place in layout.places(view.record):
        if place.own or place.copies or place.device in used:
            column = 0 if place.device == "cpu" else 1 if place.own else 2
            boxes.append(Box([place.device], _lines(place, rows, used), column))
    with_copies = [box for box in boxes if box.column == 2]
    if len(with_copies) <= MOST_BOXES:
        return boxes
    groups: dict[tuple[str, ...], Box] = {}
    for box in with_copies:
        groups.setdefault(tuple(box.lines), Box([], box.lines, 2)).devices.extend(box.devices)
    return [*(box for box in boxes if box.column != 2), *groups.values()]


def _rows(view: RecordView) -> dict[str, int]:
    """{device: rows of the largest batch that its replica computes}"""
    group = view.largest
    call = next(iter(group.replicated), None) if group else None
    return dict(zip(call.devices, group.split, strict=False)) if group and call else {}


def _lines(place: layout.DeviceContents, rows: dict[str, int], used: list[str]) -> list[str]:
    names = units.short_names([name or "(model)" for name in place.own], MOST_LETTERS)
    lines = [f"{name}  {units.size(count)}" for name, count in zip(names, place.own.values(), strict=True)]
    if len(lines) > MOST_MODULES:
        rest = list(place.own.values())[MOST_MODULES - 1 :]
        lines[MOST_MODULES - 1 :] = [f"… {plural(len(rest), 'more module')}  {units.size(sum(rest))}"]
    if place.copies:
        names = units.short_names([name or "(model)" for name in place.copies], MOST_LETTERS)
        what = names[0] if len(names) == 1 else f"{len(names)} modules"
        lines.append(f"copy of {what}  {units.size(sum(place.copies.values()))}")
    if place.device in rows:
        lines.append(f"computes {plural(rows[place.device], 'row')}")
    elif place.device in used and place.device != "cpu" and rows:
        lines.append("idle: no rows for it")
    return lines or ["no parameters"]


def stack_height(column: list[Box]) -> float:
    """The height of a column, gaps included."""
    return sum(box.height for box in column) + _GAP * (len(column) - 1)


def stack(column: list[Box], x: float, upper: float, height: float) -> float:
    """Place the boxes of a column from top to bottom, centred; a single box fills the height.

    Returns the right edge of the column, which is as wide as its longest line.
    """
    titles = widest((box.title for box in column), _TITLE, is_bold=True)
    lines = widest((line for box in column for line in box.lines), LETTERS)
    width = max(LEAST_WIDTH, 3 * INDENT + max(titles, lines) / DPI)
    if len(column) == 1:
        column[0].min_height = height
    top = upper + (height - stack_height(column)) / 2
    for box in column:
        box.x, box.top, box.width = x, top, width
        top += box.height + _GAP
    return x + width


def draw(picture: Picture, box: Box) -> None:
    """Draw a box where it has been placed; that of several devices has a shadow."""
    for shift in (0.07, 0.0) if len(box.devices) > 1 else (0.0,):
        left, upper = pixels(box.x + shift), pixels(box.top - shift / 2)
        picture.add(Card((left, upper, left + pixels(box.width - 0.08), upper + pixels(box.height))))
    x, y = pixels(box.x + INDENT), box.top + _PADDING + LINE_HEIGHT / 2
    picture.add(Text(x, pixels(y), box.title, _TITLE, is_bold=True))
    for line in box.lines:
        y += LINE_HEIGHT
        picture.add(Text(x, pixels(y), line, LETTERS))
