"""Figures of one run by matplotlib: phases.png, where a step's time goes, and layout.png, what lies where.

layout.png has boxes in columns from left to right: the host, the devices that hold modules, those that hold
only copies. Devices with the same content share a box. Arrows show what a step sends.
"""

from __future__ import annotations

import textwrap
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpexp.config.errors import plural
from dpexp.record.phases import REST
from dpexp.record.steps import quartiles
from dpexp.record.view import RecordView
from dpexp.report import layout, style, units

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

MOST_BOXES, MOST_LETTERS = 8, 40
"""Of the boxes of a column, and of a line."""
_LETTER, _LINE, _GAP, _BETWEEN, _TITLE = 0.08, 0.17, 0.55, 1.6, 0.55
"""In inches: a letter, a line, and what is free between boxes, columns and above."""


def phases_figure(view: RecordView) -> Figure | None:
    """A bar for each phase and the rest: its median, a line between its quartiles, its share of a step.

    Steps that cannot be judged have no shares, and the title says so. None for a Record without phases.
    """
    record, bars = view.record, [*view.phases, *([view.rest] if view.rest is not None else [])]
    if not bars:
        return None
    samples, colors = view.phase_samples | {REST: view.rest_samples}, style.of_run(view)
    is_judged = view.phase_noise is None
    figure, axes = style.figure_with_axes(10.0, 1.1 + 0.36 * len(bars))
    for place, bar in enumerate(bars):
        low, _, high = quartiles(samples[bar.name])
        axes.barh(place, bar.median, height=0.66, color=colors[bar.name], **style.EDGE)
        axes.plot([low, high], [place, place], color=style.INK, linewidth=1.5)
        share = f"{units.percent(bar.share)}   " if is_judged else ""
        text = f"  {share}{units.ms(bar.median)} [{units.ms(low)} – {units.ms(high)}]"
        axes.text(max(bar.median, high), place, text, va="center", fontsize=9, color=style.INK)
    style.label_rows(axes, ["└ " * bar.depth + bar.name for bar in bars])
    axes.set_xlim(left=0.0)
    style.time_axis(axes)
    where, count = f"{record.strategy} on {layout.stage(record)}", plural(max(bar.n for bar in bars), "step")
    what = f"where a step of {units.ms(view.timed_ms)} goes (median [quartiles] of {count})"
    style.title(axes, f"{where}: {what}" + ("" if is_judged else ", which cannot be judged"))
    return figure


@dataclass(eq=False)
class Box:
    """One device, or several with the same content; ``text`` is what is drawn."""

    devices: list[str]
    lines: list[str]
    column: int
    text: Text | None = None

    @property
    def title(self) -> str:
        count = len(self.devices)
        return units.span(self.devices) + (f" ({count} devices, each:)" if count > 1 else "")

    @property
    def height(self) -> float:
        return _LINE * len(self.lines) + _GAP


def layout_figure(view: RecordView) -> Figure | None:
    """The layout of a run; None for a Record without a device map."""
    if not view.record.device_map:
        return None
    columns = _columns(view)
    widths = [
        _LETTER * max(len(line) for box in column for line in (box.title, *box.lines)) for column in columns
    ]
    heights = [sum(box.height for box in column) for column in columns]
    width, height = max(7.0, 0.4 + sum(widths) + _BETWEEN * len(columns)), _TITLE + max(heights)
    figure, axes = style.figure_with_axes(width, height)
    figure.set_layout_engine("none")
    axes.set_position((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0.0, width), ylim=(height, 0.0))
    axes.set_axis_off()
    style.title(axes, f"{view.record.strategy} on {layout.stage(view.record)}: what lies where")
    x = 0.3
    for column, needed, own in zip(columns, widths, heights, strict=True):
        top = _TITLE + (height - _TITLE - own) / 2
        for box in column:
            _draw(axes, box, x, top)
            top += box.height
        x += needed + _BETWEEN
    _connect(axes, view, [box for column in columns for box in column])
    return figure


def _draw(axes: Axes, box: Box, x: float, top: float) -> None:
    card = {"boxstyle": "round,pad=0.5", "facecolor": "white", "edgecolor": style.LINE}
    look: dict[str, Any] = {"va": "top", "color": style.INK}
    axes.text(x, top, style.escape(box.title), fontsize=9, fontweight="bold", **look)
    box.text = axes.text(x, top + 0.27, style.escape("\n".join(box.lines)), fontsize=8.5, bbox=card, **look)


def _connect(axes: Axes, view: RecordView, boxes: list[Box]) -> None:
    """Arrows in the colour of what most bytes are sent by; one between boxes of a column passes them."""
    box_of = {device: box for box in boxes for device in box.devices}
    arrows = defaultdict[tuple[Box, Box], Counter[str]](Counter)
    for move in view.moves:
        start, end = box_of.get(move.source), box_of.get(move.target)
        if start is not None and end is not None and start is not end:
            arrows[start, end][move.what] += move.bytes
    for (start, end), sent in arrows.items():
        (what, _), *_ = sent.most_common()
        begin, stop, bend = (1, 0.65), (0, 0.65), 0.0
        if start.column > end.column:
            begin, stop = (0, 0.35), (1, 0.35)
        elif start.column == end.column:
            is_upward = boxes.index(start) > boxes.index(end)
            begin, stop, bend = (1, 0.5), (1, 0.5), 0.6 if is_upward else -0.6
        assert start.text is not None
        assert end.text is not None
        arrow = {"arrowstyle": "-|>", "color": style.colors([what])[what], "shrinkA": 6, "shrinkB": 6}
        arrow["connectionstyle"] = f"arc3,rad={bend}"
        axes.annotate("", stop, begin, xycoords=end.text, textcoords=start.text, arrowprops=arrow)


def _columns(view: RecordView) -> list[list[Box]]:
    """The boxes of a Record: those of the host, of devices with modules, and of devices with copies."""
    boxes: dict[tuple[object, ...], Box] = {}
    for place in layout.places(view.record):
        if place.own or place.copies or place.device in view.record.devices["used"]:
            column, lines = 0 if place.device == "cpu" else 1 if place.own else 2, _contents(view, place)
            boxes.setdefault((column, *lines), Box([], lines, column)).devices.append(place.device)
    columns = [[box for box in boxes.values() if box.column == number] for number in range(3)]
    for several in columns:
        if rest := [device for box in several[MOST_BOXES:] for device in box.devices]:
            several[MOST_BOXES:] = [Box(rest, ["…"], several[0].column)]
    return [column for column in columns if column]


def _contents(view: RecordView, place: layout.DeviceContents) -> list[str]:
    """What a device holds, computes and gets, a line each."""
    size = place.own.total() + place.copies.total()
    lines = textwrap.wrap(layout.holds(place), MOST_LETTERS) if size else ["no module"]
    group = view.largest
    call = next(iter(group.replicated), None) if group else None
    if size:
        lines.append(f"parameters {units.size(size)}")
    if group and call and place.device in view.devices:
        rows = dict(zip(call.devices, group.split, strict=False)).get(place.device)
        lines.append(f"computes {plural(rows, 'row')}" if rows else "idle: no rows for it")
    received = Counter[str]()
    for move in view.moves:
        if move.target == place.device:
            received[move.name] += move.bytes
    return [*lines, *(f"gets {units.size(sent)} by {what}" for what, sent in received.items())]
