"""layout.png: the device map as boxes (what lies on each device) and arrows (what a step moves).

Columns from left to right: the host where it holds or sends something, the devices that hold modules
of their own, the devices that hold copies only. Devices that look alike share a box when there are
many of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpexp.record import Record
from dpexp.report import units
from dpexp.report.analysis import layout
from dpexp.report.analysis.shapes import batches
from dpexp.report.figures import palette, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_BOXES = 8
"""Further devices that get a box each; of more, those that look alike share one."""
MOST_MODULES = 10
LINE_HEIGHT, PADDING, GAP, BETWEEN = 0.2, 0.16, 0.22, 2.3
BOX_WIDTH = 2.9


@dataclass
class Box:
    """One device, or several that look alike: where it stands (inches) and its lines."""

    devices: list[str]
    lines: list[str]
    column: int
    x: float = 0.0
    top: float = 0.0
    stretch: float = 0.0

    @property
    def height(self) -> float:
        return max(self.stretch, 2 * PADDING + LINE_HEIGHT * (1 + len(self.lines)))

    @property
    def title(self) -> str:
        count = len(self.devices)
        return units.span(self.devices) + (f"  ({count} devices, each:)" if count > 1 else "")


def layout_figure(record: Record) -> Figure:
    """The layout of a Record that has a device map."""
    boxes = _boxes(record)
    columns = sorted({box.column for box in boxes})
    height = max(_stack(boxes, column) for column in columns)
    for index, column in enumerate(columns):
        _set(boxes, column, index * (BOX_WIDTH + BETWEEN), height)
    width = len(columns) * BOX_WIDTH + (len(columns) - 1) * BETWEEN
    figure = style.figure(max(6.0, width + 0.6), height + 1.0)
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.set_xlim(-0.1, max(5.4, width + 0.1))
    axes.set_ylim(-0.15, height + 0.1)
    for box in boxes:
        _draw(axes, box)
    for arrow in _arrows(record, boxes):
        _connect(axes, *arrow)
    style.title(axes, f"{record.strategy} on {layout.stage(record)}: what lies where")
    return figure


# --- boxes ---------------------------------------------------------------------------------------


def _boxes(record: Record) -> list[Box]:
    places = [place for place in layout.places(record) if place.own or place.copies or _works(record, place)]
    rows = _rows(record)
    boxes: list[Box] = []
    for place in places:
        column = 0 if place.device == "cpu" else 1 if place.own else 2
        boxes.append(Box([place.device], _lines(record, place, rows.get(place.device)), column))
    further = [box for box in boxes if box.column == 2]
    return (
        boxes if len(further) <= MOST_BOXES else [box for box in boxes if box.column != 2] + _alike(further)
    )


def _works(record: Record, place: layout.Place) -> bool:
    return place.device in record.devices["used"]


def _alike(boxes: list[Box]) -> list[Box]:
    groups: dict[tuple[str, ...], Box] = {}
    for box in boxes:
        groups.setdefault(tuple(box.lines), Box([], box.lines, box.column)).devices.extend(box.devices)
    return list(groups.values())


def _rows(record: Record) -> dict[str, int]:
    """Rows of the largest batch by device of its replicas."""
    groups = batches(record)
    if not groups:
        return {}
    group = max(groups, key=lambda one: one.rows)
    return {
        device: rows
        for call in layout.replicated_calls(group)[:1]
        for device, rows in zip(call.devices, group.split, strict=False)
    }


def _lines(record: Record, place: layout.Place, rows: int | None) -> list[str]:
    lines = [f"{_short(name or '(model)')}  {units.size(count)}" for name, count in place.own.items()]
    if len(lines) > MOST_MODULES:
        rest = list(place.own.values())[MOST_MODULES - 1 :]
        lines = [*lines[: MOST_MODULES - 1], f"… {len(rest)} more modules  {units.size(sum(rest))}"]
    if place.copies:
        names = [_short(name or "(model)") for name in place.copies]
        what = names[0] if len(names) == 1 else f"{len(names)} modules"
        lines.append(f"copy of {what}  {units.size(sum(place.copies.values()))}")
    if rows is not None:
        lines.append(f"computes {rows} rows")
    elif place.device in record.devices["used"] and place.device != "cpu" and _rows(record):
        lines.append("idle: no rows for it")
    return lines or ["no parameters"]


def _short(name: str, most: int = 26) -> str:
    return name if len(name) <= most else f"…{name[1 - most :]}"


def _stack(boxes: list[Box], column: int) -> float:
    heights = [box.height for box in boxes if box.column == column]
    return sum(heights) + GAP * (len(heights) - 1)


def _set(boxes: list[Box], column: int, x: float, height: float) -> None:
    """Stand the column's boxes on top of one another, centred; one alone is as tall as all its neighbours."""
    alone = [box for box in boxes if box.column == column]
    if len(alone) == 1:
        alone[0].stretch = height
    top = height - (height - _stack(boxes, column)) / 2
    for box in boxes:
        if box.column == column:
            box.x, box.top = x, top
            top -= box.height + GAP


def _draw(axes: Axes, box: Box) -> None:
    from matplotlib.patches import FancyBboxPatch

    several = len(box.devices) > 1
    for shift in (0.08, 0.0) if several else (0.0,):
        axes.add_patch(
            FancyBboxPatch(
                (box.x + shift, box.top - box.height + shift / 2), BOX_WIDTH - 0.08, box.height,
                boxstyle="round,pad=0,rounding_size=0.08", facecolor="white", edgecolor=style.SOFT,
            )
        )  # fmt: skip
    y = box.top - PADDING - LINE_HEIGHT / 2
    left = box.x + 0.12
    axes.text(left, y, style.escape(box.title), fontsize=9.5, fontweight="bold", color=style.INK, va="center")
    for line in box.lines:
        y -= LINE_HEIGHT
        axes.text(left, y, style.escape(line), fontsize=8.5, color=style.INK, va="center")


# --- arrows --------------------------------------------------------------------------------------

Arrow = tuple[Box, Box, dict[str, int]]


def _arrows(record: Record, boxes: list[Box]) -> list[Arrow]:
    """(from, to, {what: bytes to or from each device}) for every pair of boxes that exchange something."""
    of = {device: box for box in boxes for device in box.devices}
    found: dict[tuple[int, int], Arrow] = {}
    for move in layout.moves(record):
        source, target = of.get(move.source), of.get(move.target)
        if source is None or target is None or source is target:
            continue
        sent = found.setdefault((id(source), id(target)), (source, target, {}))[2]
        sent[move.what] = sent.get(move.what, 0) + move.bytes
    for source, target, sent in found.values():
        each = max(len(source.devices), len(target.devices))
        for what in sent:
            sent[what] = round(sent[what] / each)
    return list(found.values())


def _connect(axes: Axes, source: Box, target: Box, sent: dict[str, int]) -> None:
    """One arrow, in the colour of its largest load, its loads written on it beside the outer box."""
    from matplotlib.patheffects import withStroke

    there = source.x < target.x
    outer = target if there else source
    lift = 0.09 if there else -0.09
    y_outer = outer.top - outer.height / 2 + lift
    inner = source if there else target
    y_inner = min(max(y_outer, inner.top - inner.height + 0.1), inner.top - 0.1)
    x_inner, x_outer = inner.x + BOX_WIDTH - 0.04, outer.x - 0.06
    start, end = (
        ((x_inner, y_inner), (x_outer, y_outer)) if there else ((x_outer, y_outer), (x_inner, y_inner))
    )
    shade = palette.color(max(sent, key=lambda what: sent[what]))
    edge = [withStroke(linewidth=3, foreground=style.SOFT)]
    axes.annotate(
        "",
        xy=end,
        xytext=start,
        arrowprops={"arrowstyle": "-|>", "color": shade, "linewidth": 1.6, "path_effects": edge},
    )
    words = " + ".join(f"{what} {units.size(count)}" for what, count in sent.items())
    axes.text(
        x_outer - 0.22, y_outer + (0.05 if there else -0.05), words, fontsize=8, color=style.INK,
        ha="right", va="bottom" if there else "top",
        bbox={"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
    )  # fmt: skip
