"""Figures of one run by matplotlib: phases.png, where a step's time goes, and layout.png, what lies where.

layout.png has a box for each device with what it holds, computes and gets; devices that are alike share one.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Any

from dpexp.config.words import plural
from dpexp.record.phases import REST
from dpexp.record.steps import quartiles
from dpexp.record.view import RecordView
from dpexp.report import layout, style, units

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LETTERS = 80
"""Of a line."""
_LINE, _GAP = 0.17, 0.4
"""In inches: the height of a line, and half of what a box takes beside its lines."""


def phases_figure(view: RecordView) -> Figure | None:
    """A bar for each phase and the rest: its median, a line between its quartiles, its share of a step.

    Steps that cannot be judged have no shares, and the title says so. None for a Record without phases.
    """
    record, bars = view.record, [*view.phases, *([view.rest] if view.rest is not None else [])]
    if not bars:
        return None
    samples, colors = view.phase_samples | {REST: [step.rest for step in view.spans]}, style.of_run(view)
    is_judged = view.noise is None
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


def layout_figure(view: RecordView) -> Figure | None:
    """The layout of a run; None for a Record without a device map."""
    if not view.record.device_map:
        return None
    boxes = _boxes(view)
    height = 2 * _GAP + sum(_LINE * len(lines) + 1.5 * _GAP for lines in boxes.values())
    figure, axes = style.figure_with_axes(8.0, height)
    figure.set_layout_engine("none")
    axes.set_position((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0.0, 8.0), ylim=(height, 0.0))
    axes.set_axis_off()
    style.title(axes, f"{view.record.strategy} on {layout.stage(view.record)}: what lies where")
    card = {"boxstyle": "round,pad=0.5", "facecolor": "white", "edgecolor": style.LINE}
    look: dict[str, Any] = {"va": "top", "color": style.INK}
    top = 1.5 * _GAP
    for title, lines in boxes.items():
        axes.text(0.3, top, style.escape(title), fontsize=9, fontweight="bold", **look)
        axes.text(0.3, top + 0.27, style.escape("\n".join(lines)), fontsize=8.5, bbox=card, **look)
        top += _LINE * len(lines) + 1.5 * _GAP
    return figure


def _boxes(view: RecordView) -> dict[str, list[str]]:
    """{devices: lines} of the devices that hold or compute something, those that are alike together."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for place in layout.places(view.record):
        if place.own or place.copies or place.device in view.record.devices["used"]:
            alike.setdefault(tuple(_contents(view, place)), []).append(place.device)
    return {_title(devices): [*lines] for lines, devices in alike.items()}


def _title(devices: list[str]) -> str:
    return units.device_names(devices) + (f" ({len(devices)} devices, each:)" if len(devices) > 1 else "")


def _contents(view: RecordView, place: layout.DeviceContents) -> list[str]:
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
