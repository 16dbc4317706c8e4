"""layout.png: the device map as boxes (what is on each device) and arrows (what a step moves).

Columns from left to right: the host if it holds or sends something, the devices that hold modules, the
devices that hold only copies. Many devices with the same content share a box. An arrow between two boxes of
a column passes them on their right, so that no arrow crosses a box.
"""

import itertools
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from matplotlib.path import Path
from matplotlib.patheffects import withStroke

from dpexp.record.view import RecordView
from dpexp.report import units
from dpexp.report.analysis import layout
from dpexp.report.figures import palette, style
from dpexp.report.figures.boxes import Box, boxes_of, draw, stack, stack_height

BETWEEN, LOADS = 2.8, 8.0
LANE, MOST_LANES = 0.14, 8
"""The width of a lane for arrows beside a column, of which there are so many; more arrows share them."""
_PLATE = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.6, "alpha": 0.85}


Arrow = tuple[Box, Box, dict[str, int]]


def layout_figure(view: RecordView) -> Figure:
    """The layout of a Record that has a device map."""
    record, boxes = view.record, boxes_of(view)
    numbers = sorted({box.column for box in boxes})
    columns = [[box for box in boxes if box.column == number] for number in numbers]
    arrows, height = _arrows(view, boxes), max(map(stack_height, columns))
    x = width = 0.0
    for column in columns:
        width = _edge_of_lanes(column, stack(column, x, height), _beside(arrows, column))
        x = width + BETWEEN
    figure = style.figure(max(6.0, width + 0.6), height + 1.0)
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.set_xlim(-0.1, max(5.4, width + 0.1))
    axes.set_ylim(-0.15, height + 0.1)
    for box in boxes:
        draw(axes, box)
    for source, target, sent in arrows:
        if source.x != target.x:
            _connect(axes, source, target, sent)
    for column in columns:
        _connect_beside(axes, column, _beside(arrows, column))
    style.title(axes, f"{record.strategy} on {layout.stage(record)}: what lies where")
    return figure


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
    y_outer = outer.middle + (0.09 if outward else -0.09)
    y_inner = min(max(y_outer, inner.top - inner.height + 0.1), inner.top - 0.1)
    ends = [(inner.x + inner.width - 0.04, y_inner), (outer.x - 0.06, y_outer)]
    start, end = ends if outward else reversed(ends)
    axes.annotate("", xy=end, xytext=start, arrowprops=_style(sent))
    axes.text(
        outer.x - 0.28, y_outer + (0.05 if outward else -0.05), _loads(sent), fontsize=LOADS,
        color=style.INK, ha="right", va="bottom" if outward else "top", bbox=_PLATE,
    )  # fmt: skip


def _beside(arrows: list[Arrow], column: list[Box]) -> list[Arrow]:
    """The arrows between two boxes of this column."""
    return [arrow for arrow in arrows if arrow[0] in column and arrow[1] in column]


def _lanes(column: list[Box], arrows: list[Arrow]) -> list[int]:
    """The lane of each arrow: one for neighbours downwards, one upwards, and one for each other arrow."""
    steps = [column.index(target) - column.index(source) for source, target, _ in arrows]
    far = itertools.cycle(range(2, MOST_LANES))
    return [next(far) if abs(step) > 1 else int(step < 0) for step in steps]


def _edge_of_lanes(column: list[Box], right: float, arrows: list[Arrow]) -> float:
    """Where the column and what is beside it end, whose own right edge this is."""
    return right + LANE * (max(_lanes(column, arrows)) + 2) + BETWEEN - 0.4 if arrows else right


def _connect_beside(axes: Axes, column: list[Box], arrows: list[Arrow]) -> None:
    """Arrows on the right of a column, neighbours from edge to edge, others from middle to middle.

    What a box gets stands beside it.
    """
    lanes = _lanes(column, arrows)
    for lane, (source, target, sent) in zip(lanes, arrows, strict=True):
        down = 0.5 if source.top > target.top else -0.5
        inset = 0.15 * (lane + 1)
        heights = [source.middle - down * (source.height - 2 * inset)]
        heights += [target.middle + down * (target.height - 2 * inset)]
        if lane > 1:
            heights = [source.middle, target.middle]
        edge = source.x + source.width - 0.04
        turn = edge + LANE * (lane + 1)
        corners = [(edge, heights[0]), *((turn, height) for height in heights), (edge, heights[1])]
        axes.add_patch(FancyArrowPatch(path=Path(corners), mutation_scale=10, **_style(sent)))
    for box in column:
        if gets := _gets([arrow for arrow in arrows if arrow[1] is box]):
            x = box.x + box.width + LANE * (max(lanes) + 2)
            axes.text(x, box.middle, gets, fontsize=LOADS, color=style.INK, va="center", bbox=_PLATE)


def _gets(arrows: list[Arrow]) -> str:
    """What a box gets from others of its column; those that send the same in one line."""
    senders: dict[str, list[str]] = {}
    for source, _, sent in arrows:
        senders.setdefault(_loads(sent), []).extend(source.devices)
    return "\n".join(f"from {units.span(devices)}: {loads}" for loads, devices in senders.items())


def _style(sent: dict[str, int]) -> dict[str, Any]:
    """An arrow in the colour of its largest load."""
    what = max(sent, key=lambda name: sent[name]).partition(" ")[0]
    return {
        "arrowstyle": "-|>",
        "color": palette.colors([what])[what],
        "linewidth": 1.6,
        "path_effects": [withStroke(linewidth=3, foreground=style.SOFT)],
    }


def _loads(sent: dict[str, int]) -> str:
    loads = (f"{what} {units.size(count)}".replace(" ", "\N{NO-BREAK SPACE}") for what, count in sent.items())
    return style.wrapped(" + ".join(loads), BETWEEN - 0.4, LOADS)
