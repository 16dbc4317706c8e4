"""Figures of one run by matplotlib: phases.png, where a step's time goes, and layout.png, what lies where."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpexp.config.ranges import plural
from dpexp.record.phases import REST
from dpexp.record.steps import quartiles
from dpexp.record.view import RecordView
from dpexp.report import layout, style, units
from dpexp.report.units import is_visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

MOST_BOXES, MOST_MODULES, MOST_LETTERS = 8, 10, 40
"""Of the boxes of a column, of the modules of a box, and of a name."""
_LETTER, _LINE, _GAP, _BETWEEN, _TITLE = 0.08, 0.17, 0.55, 1.6, 0.55
"""In inches: a letter, a line, and what is free between boxes, columns and above."""
_CARD = {"boxstyle": "round,pad=0.5", "facecolor": "white", "edgecolor": style.LINE}


def phases_figure(view: RecordView) -> Figure:
    """A bar for each phase and the rest: its median, a line between its quartiles, its share of a step.

    Steps that cannot be judged have no shares.
    """
    record, bars = view.record, [*view.phases, *([view.rest] if view.rest is not None else [])]
    samples = view.phase_samples | {REST: view.rest_samples}
    is_judged = view.noise is None and view.phase_noise is None
    colors = style.of_run(view)
    figure, axes = style.figure_with_axes(10.0, 1.1 + 0.36 * len(bars))
    for place, bar in enumerate(bars):
        low, _, high = quartiles(samples[bar.name])
        if is_visible(bar):
            axes.barh(place, bar.median, height=0.66, color=colors[bar.name], **style.EDGE)
            axes.plot([low, high], [place, place], color=style.INK, linewidth=1.5)
        share = f"{units.percent(bar.share)}   " if is_judged else ""
        text = f"  {share}{units.ms(bar.median)} [{units.ms(low)} – {units.ms(high)}]"
        axes.text(max(bar.median, high), place, text, va="center", fontsize=9, color=style.INK)
    style.label_rows(axes, ["    " * bar.depth + bar.name for bar in bars])
    axes.set_xlim(left=0.0)
    style.time_axis(axes)
    where, count = f"{record.strategy} on {layout.stage(record)}", plural(max(bar.n for bar in bars), "step")
    what = f"where a step of {units.ms(view.timed_ms)} goes (median [quartiles] of {count})"
    style.title(axes, f"{where}: {what}")
    return figure


@dataclass(eq=False)
class Box:
    """One device, or several with the same content; ``text`` is what is drawn."""

    devices: list[str]
    lines: list[str]
    column: int
    top: float = 0.0
    text: Text | None = None

    @property
    def title(self) -> str:
        count = len(self.devices)
        return units.span(self.devices) + (f" ({count} devices, each:)" if count > 1 else "")

    @property
    def height(self) -> float:
        return _LINE * len(self.lines) + _GAP


def layout_figure(view: RecordView) -> Figure:
    """The layout of a Record that has a device map."""
    record, columns = view.record, columns_of(view)
    widths = [
        _LETTER * max(len(line) for box in column for line in (box.title, *box.lines)) for column in columns
    ]
    heights = [sum(box.height for box in column) for column in columns]
    width, height = max(7.0, 0.4 + sum(widths) + _BETWEEN * len(columns)), _TITLE + max(heights)
    figure = style.figure(width, height)
    figure.set_layout_engine("none")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0), xlim=(0.0, width), ylim=(height, 0.0))
    axes.set_axis_off()
    style.title(axes, f"{record.strategy} on {layout.stage(record)}: what lies where")
    x = 0.3
    for column, needed, own in zip(columns, widths, heights, strict=True):
        top = _TITLE + (height - _TITLE - own) / 2
        for box in column:
            _draw(axes, box, x, top)
            top += box.height
        x += needed + _BETWEEN
    box_of = {device: box for column in columns for box in column for device in box.devices}
    arrows = defaultdict[tuple[Box, Box], Counter[str]](Counter)
    for (source, target), sent in _sent(view).items():
        if source in box_of and target in box_of and box_of[source] is not box_of[target]:
            arrows[box_of[source], box_of[target]] += sent
    colors = style.of_run(view)
    for (start, end), sent in arrows.items():
        what = max(sent, key=lambda name: sent[name]).partition(" ")[0]
        _connect(axes, start, end, colors.get(what) or style.colors([what])[what])
    return figure


def _draw(axes: Axes, box: Box, x: float, top: float) -> None:
    title, lines = style.escape(box.title), style.escape("\n".join(box.lines))
    axes.text(x, top, title, va="top", fontsize=9, fontweight="bold", color=style.INK)
    box.top, box.text = (
        top,
        axes.text(x, top + 0.27, lines, va="top", fontsize=8.5, color=style.INK, bbox=_CARD),
    )


def _connect(axes: Axes, start: Box, end: Box, color: str) -> None:
    """An arrow in the colour of what most bytes are sent by; one between boxes of a column passes them."""
    assert start.text is not None
    assert end.text is not None
    begin, stop, bend = (1, 0.65), (0, 0.65), 0.0
    if start.column > end.column:
        begin, stop = (0, 0.35), (1, 0.35)
    elif start.column == end.column:
        begin, stop, bend = (1, 0.5), (1, 0.5), 0.6 if start.top > end.top else -0.6
    arrow = {"arrowstyle": "-|>", "color": color, "shrinkA": 6, "shrinkB": 6}
    arrow["connectionstyle"] = f"arc3,rad={bend}"
    axes.annotate("", stop, begin, xycoords=end.text, textcoords=start.text, arrowprops=arrow)


def columns_of(view: RecordView) -> list[list[Box]]:
    """The boxes of a Record: those of the host, of devices with modules, and of devices with copies."""
    used, columns = view.record.devices["used"], defaultdict[int, list[Box]](list)
    for place in layout.places(view.record):
        if place.own or place.copies or place.device in used:
            column = 0 if place.device == "cpu" else 1 if place.own else 2
            columns[column].append(Box([place.device], _lines(view, place), column))
    return [_joined(columns[number]) for number in sorted(columns)]


def _joined(boxes: list[Box]) -> list[Box]:
    if len(boxes) <= MOST_BOXES:
        return boxes
    groups: dict[tuple[str, ...], Box] = {}
    for box in boxes:
        groups.setdefault(tuple(box.lines), Box([], box.lines, box.column)).devices.extend(box.devices)
    first, others = [*groups.values()][:MOST_BOXES], [*groups.values()][MOST_BOXES:]
    devices = [device for box in others for device in box.devices]
    return [*first, Box(devices, ["…"], boxes[0].column)] if others else first


def _lines(view: RecordView, place: layout.DeviceContents) -> list[str]:
    names = units.short_names([name or "(model)" for name in place.own], MOST_LETTERS)
    lines = [f"{name}  {units.size(count)}" for name, count in zip(names, place.own.values(), strict=True)]
    if len(lines) > MOST_MODULES:
        rest = [*place.own.values()][MOST_MODULES - 1 :]
        lines[MOST_MODULES - 1 :] = [f"… {plural(len(rest), 'more module')}  {units.size(sum(rest))}"]
    if place.copies:
        (first, *others) = units.short_names([name or "(model)" for name in place.copies], MOST_LETTERS)
        what = f"{1 + len(others)} modules" if others else first
        lines.append(f"copy of {what}  {units.size(place.copies.total())}")
    group = view.largest
    call = next(iter(group.replicated), None) if group else None
    if group and call and place.device in view.record.devices["used"] and place.device != "cpu":
        rows = dict(zip(call.devices, group.split, strict=False)).get(place.device)
        lines.append(f"computes {plural(rows, 'row')}" if rows else "idle: no rows for it")
    received = Counter[str]()
    for (_, target), sent in _sent(view).items():
        received += sent if target == place.device else Counter()
    return [*lines, *(f"gets {units.size(sent)} by {what}" for what, sent in received.items())] or ["nothing"]


def _sent(view: RecordView) -> dict[tuple[str, str], Counter[str]]:
    """{(from, to): {what: bytes}} of a step."""
    found = defaultdict[tuple[str, str], Counter[str]](Counter)
    for move in view.moves:
        if move.source != move.target:
            found[move.source, move.target][move.name] += move.bytes
    return found
