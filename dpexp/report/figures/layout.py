"""layout.png: the device map as boxes (what is on each device) and arrows (what a step moves).

Columns from left to right: the host if it holds or sends something, the devices that hold modules, the
devices that hold only copies. Many devices with the same content share a box.
"""

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.patheffects import withStroke

from dpexp.config.ranges import plural
from dpexp.record.view import RecordView
from dpexp.report import units
from dpexp.report.analysis import layout
from dpexp.report.figures import palette, style

MOST_BOXES = 8
"""So many devices with copies get a box each; of more, those with the same content share one."""
MOST_MODULES = 10
MOST_LETTERS = 40
"""Longer names of modules are shortened; a box is as wide as its lines."""
LINE_HEIGHT, _PADDING, _GAP, BETWEEN = 0.2, 0.16, 0.22, 2.8
LEAST_WIDTH, INDENT = 2.0, 0.12
_TITLE, LETTERS, LOADS = 9.5, 8.5, 8.0


@dataclass
class Box:
    """One device, or several with the same content: its lines, and its place in the figure (inches)."""

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
    def title(self) -> str:
        count = len(self.devices)
        return units.span(self.devices) + (f"  ({count} devices, each:)" if count > 1 else "")


Arrow = tuple[Box, Box, dict[str, int]]


def layout_figure(view: RecordView) -> Figure:
    """The layout of a Record that has a device map."""
    record, boxes = view.record, _boxes(view)
    numbers = sorted({box.column for box in boxes})
    columns = [[box for box in boxes if box.column == number] for number in numbers]
    height = max(map(_stack_height, columns))
    x = 0.0
    for column in columns:
        x = _stack(column, x, height) + BETWEEN
    width = x - BETWEEN
    figure = style.figure(max(6.0, width + 0.6), height + 1.0)
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.set_xlim(-0.1, max(5.4, width + 0.1))
    axes.set_ylim(-0.15, height + 0.1)
    for box in boxes:
        _draw(axes, box)
    for source, target, sent in _arrows(view, boxes):
        _connect(axes, source, target, sent)
    style.title(axes, f"{record.strategy} on {layout.stage(record)}: what lies where")
    return figure


def _boxes(view: RecordView) -> list[Box]:
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


def _stack_height(column: list[Box]) -> float:
    return sum(box.height for box in column) + _GAP * (len(column) - 1)


def _stack(column: list[Box], x: float, height: float) -> float:
    """Place the boxes of a column from top to bottom, centred; a single box fills the height.

    Returns the right edge of the column, which is as wide as its longest line.
    """
    titles = [style.text_width(box.title, _TITLE, "bold") for box in column]
    lines = [style.text_width(line, LETTERS) for box in column for line in box.lines]
    width = max(LEAST_WIDTH, 3 * INDENT + max(titles + lines))
    if len(column) == 1:
        column[0].min_height = height
    top = height - (height - _stack_height(column)) / 2
    for box in column:
        box.x, box.top, box.width = x, top, width
        top -= box.height + _GAP
    return x + width


def _draw(axes: Axes, box: Box) -> None:
    for shift in (0.08, 0.0) if len(box.devices) > 1 else (0.0,):
        corner = (box.x + shift, box.top - box.height + shift / 2)
        axes.add_patch(
            FancyBboxPatch(
                corner, box.width - 0.08, box.height,
                boxstyle="round,pad=0,rounding_size=0.08", facecolor="white", edgecolor=style.SOFT,
            )
        )  # fmt: skip
    y = box.top - _PADDING - LINE_HEIGHT / 2
    left = box.x + INDENT
    axes.text(
        left, y, style.escape(box.title), fontsize=_TITLE, fontweight="bold", color=style.INK, va="center"
    )
    for line in box.lines:
        y -= LINE_HEIGHT
        axes.text(left, y, style.escape(line), fontsize=LETTERS, color=style.INK, va="center")


def _arrows(view: RecordView, boxes: list[Box]) -> list[Arrow]:
    """(from, to, {what: bytes to or from each device}) for every pair of boxes that exchange something."""
    box_of = {device: box for box in boxes for device in box.devices}
    found: dict[tuple[int, int], Arrow] = {}
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


def _connect(axes: Axes, source: Box, target: Box, sent: dict[str, int]) -> None:
    """One arrow, in the colour of its largest load, labelled with its loads beside the outer box."""
    outward = source.x < target.x
    inner, outer = (source, target) if outward else (target, source)
    y_outer = outer.top - outer.height / 2 + (0.09 if outward else -0.09)
    y_inner = min(max(y_outer, inner.top - inner.height + 0.1), inner.top - 0.1)
    ends = [(inner.x + inner.width - 0.04, y_inner), (outer.x - 0.06, y_outer)]
    start, end = ends if outward else reversed(ends)
    what = max(sent, key=lambda name: sent[name]).partition(" ")[0]
    arrow = {
        "arrowstyle": "-|>",
        "color": palette.colors([what])[what],
        "linewidth": 1.6,
        "path_effects": [withStroke(linewidth=3, foreground=style.SOFT)],
    }
    axes.annotate("", xy=end, xytext=start, arrowprops=arrow)
    loads = (f"{what} {units.size(count)}".replace(" ", "\N{NO-BREAK SPACE}") for what, count in sent.items())
    lines = style.wrapped(" + ".join(loads), BETWEEN - 0.4, LOADS)
    axes.text(
        outer.x - 0.28, y_outer + (0.05 if outward else -0.05), lines, fontsize=LOADS, color=style.INK,
        ha="right", va="bottom" if outward else "top",
        bbox={"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
    )  # fmt: skip
