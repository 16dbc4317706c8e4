"""layout.png: the device map as boxes (what is on each device) and arrows (what a step moves).

Columns from left to right: the host if it holds or sends something, the devices that hold modules, the
devices that hold only copies. Many devices with the same content share a box. An arrow between two boxes of
a column passes them on their right, so that no arrow crosses a box.
"""

import itertools

from dpexp.record.view import RecordView
from dpexp.report import units
from dpexp.report.analysis import layout
from dpexp.report.figures import chart, palette
from dpexp.report.figures.boxes import Box, boxes_of, draw, stack, stack_height
from dpexp.report.figures.fonts import DPI, text_pixels, widest, wrapped
from dpexp.report.figures.picture import Arrow, Bar, Picture, Text, pixels
from dpexp.report.figures.style import PAPER

BETWEEN, LOADS = 2.9, 8.0
LANE, MOST_LANES = 0.14, 8
"""The width of a lane for arrows beside a column, of which there are so many; more arrows share them."""
_LEAST, _MARGIN, _TOP = 6.0, 0.2, 0.35
"""The least width; what is free around everything, and above it, in inches."""
_LINE = 15
"""The height of a line of loads, in pixels."""

Sent = tuple[Box, Box, dict[str, int]]


def layout_figure(view: RecordView) -> Picture:
    """The layout of a Record that has a device map."""
    record, boxes = view.record, boxes_of(view)
    numbers = sorted({box.column for box in boxes})
    columns = [[box for box in boxes if box.column == number] for number in numbers]
    arrows, height = _arrows(view, boxes), max(map(stack_height, columns))
    x = width = _MARGIN
    for column in columns:
        width = _edge_of_lanes(column, stack(column, x, 0.0, height), _beside(arrows, column))
        x = width + BETWEEN
    picture_width = pixels(max(_LEAST, width + _MARGIN))
    title = chart.title_lines(f"{record.strategy} on {layout.stage(record)}: what lies where", picture_width)
    above = _TOP + len(title) * chart.TITLE_LINE / DPI
    picture = Picture(picture_width, pixels(above + height + _MARGIN))
    chart.add_title(picture, title)
    for box in boxes:
        box.top += above
        draw(picture, box)
    for source, target, sent in arrows:
        if source.x != target.x:
            _connect(picture, source, target, sent)
    for column in columns:
        _connect_beside(picture, column, _beside(arrows, column))
    return picture


def _arrows(view: RecordView, boxes: list[Box]) -> list[Sent]:
    """(from, to, {what: bytes to or from each device}) for every pair of boxes that exchange something."""
    box_of = {device: box for box in boxes for device in box.devices}
    found: dict[tuple[int, int], Sent] = {}
    for move in view.moves:
        source, target = box_of.get(move.source), box_of.get(move.target)
        if source is None or target is None or source is target:
            continue
        sent = found.setdefault((id(source), id(target)), (source, target, {}))[2]
        sent[move.name] = sent.get(move.name, 0) + move.bytes
    for source, target, sent in found.values():
        count = max(len(source.devices), len(target.devices))
        for what in sent:
            sent[what] = round(sent[what] / count)
    return list(found.values())


def _connect(picture: Picture, source: Box, target: Box, sent: dict[str, int]) -> None:
    """One arrow, in the colour of its largest load, labelled with its loads beside the outer box."""
    outward = source.x < target.x
    inner, outer = (source, target) if outward else (target, source)
    y_outer = outer.middle + (-0.1 if outward else 0.1)
    y_inner = min(max(y_outer, inner.top + 0.1), inner.top + inner.height - 0.1)
    ends = ((inner.x + inner.width - 0.05, y_inner), (outer.x - 0.06, y_outer))
    picture.add(_arrow(sent, ends if outward else ends[::-1]))
    lines = _loads(sent)
    first = pixels(y_outer) + (-_LINE * len(lines) if outward else _LINE)
    _write(picture, pixels(outer.x - 0.24), first, lines, "rm")


def _beside(arrows: list[Sent], column: list[Box]) -> list[Sent]:
    """The arrows between two boxes of this column."""
    return [arrow for arrow in arrows if arrow[0] in column and arrow[1] in column]


def _lanes(column: list[Box], arrows: list[Sent]) -> list[int]:
    """The lane of each arrow: one for neighbours downwards, one upwards, and one for each other arrow."""
    steps = [column.index(target) - column.index(source) for source, target, _ in arrows]
    far = itertools.cycle(range(2, MOST_LANES))
    return [next(far) if abs(step) > 1 else int(step < 0) for step in steps]


def _edge_of_lanes(column: list[Box], right: float, arrows: list[Sent]) -> float:
    """Where the column and what is beside it end, whose own right edge this is."""
    if not arrows:
        return right
    texts = (line for box in column for line in _gets(box, arrows))
    return right + LANE * (max(_lanes(column, arrows)) + 2) + widest(texts, LOADS) / DPI


def _connect_beside(picture: Picture, column: list[Box], arrows: list[Sent]) -> None:
    """Arrows on the right of a column, neighbours from edge to edge, others from middle to middle.

    What a box gets stands beside it.
    """
    lanes = _lanes(column, arrows)
    for lane, (source, target, sent) in zip(lanes, arrows, strict=True):
        down = 0.5 if source.top < target.top else -0.5
        inset = 0.15 * (lane + 1)
        heights = [source.middle + down * (source.height - 2 * inset)]
        heights += [target.middle - down * (target.height - 2 * inset)]
        if lane > 1:
            heights = [source.middle, target.middle]
        edge = source.x + source.width - 0.05
        corner = edge + LANE * (lane + 1)
        corners = ((edge, heights[0]), *((corner, height) for height in heights), (edge, heights[1]))
        picture.add(_arrow(sent, corners))
    for box in column:
        if gets := _gets(box, arrows):
            x = pixels(box.x + box.width + LANE * (max(lanes) + 2))
            _write(picture, x, pixels(box.middle) - _LINE * (len(gets) - 1) // 2, gets, "lm")


def _gets(box: Box, arrows: list[Sent]) -> list[str]:
    """What a box gets from others of its column; those that send the same in one line."""
    senders: dict[tuple[str, ...], list[str]] = {}
    for source, _, sent in (arrow for arrow in arrows if arrow[1] is box):
        senders.setdefault(tuple(_loads(sent)), []).extend(source.devices)
    return [
        line
        for (first, *rest), devices in senders.items()
        for line in (f"from {units.span(devices)}: {first}", *rest)
    ]


def _arrow(sent: dict[str, int], corners: tuple[tuple[float, float], ...]) -> Arrow:
    """An arrow in the colour of its largest load."""
    what = max(sent, key=lambda name: sent[name]).partition(" ")[0]
    return Arrow(tuple((pixels(x), pixels(y)) for x, y in corners), palette.colors([what])[what])


def _loads(sent: dict[str, int]) -> list[str]:
    loads = (f"{what} {units.size(count)}".replace(" ", "\N{NO-BREAK SPACE}") for what, count in sent.items())
    return wrapped(" + ".join(loads), pixels(BETWEEN - 0.5), LOADS)


def _write(picture: Picture, x: int, y: int, lines: list[str], anchor: str) -> None:
    """Lines on a plate that hides what is below them; ``y`` is the middle of the first."""
    for number, line in enumerate(lines):
        text = Text(x, y + _LINE * number, line, LOADS, anchor=anchor)
        width = text_pixels(line, LOADS) + 4
        left = x - width + 2 if anchor == "rm" else x - 2
        picture.add(Bar((left, text.y - 7, left + width, text.y + 7), PAPER, outline=None), text)
