"""timeline.png: one typical step, phases and replicas as lanes by device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpexp.record import Record
from dpexp.report import units
from dpexp.report.analysis import layout
from dpexp.report.analysis.timeline import Bar, Lane, Step, typical
from dpexp.report.figures import palette, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, LANE, MARGIN = 10.0, 0.3, 1.45
MOST_LANES = 40
"""More lanes than these are left out of the picture (and counted in its title); the HTML page has all."""
LETTER = 0.0085
"""Width of a letter as a share of the lane, for deciding whether a name fits its bar."""


def timeline_figure(record: Record, steps: list[Step]) -> Figure:
    """The typical step of the Record; ``steps`` must not be empty."""
    step = typical(steps)
    assert step is not None
    lanes = step.lanes[:MOST_LANES]
    figure = style.figure(WIDTH, MARGIN + LANE * len(lanes))
    axes = figure.add_subplot()
    style.plain(axes)
    for place, lane in enumerate(lanes):
        for bar in lane.bars:
            _draw(axes, bar, place, step.ms)
    axes.set_yticks(range(len(lanes)), [style.escape(lane.name) for lane in lanes])
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.set_xlim(0, step.ms or 1)
    axes.xaxis.set_major_formatter(lambda value, _: units.ms(value))
    axes.xaxis.tick_top()
    axes.tick_params(axis="x", labelsize=8, labelcolor=style.SOFT)
    style.title(axes, _title(record, step, len(steps)))
    if len(step.lanes) > len(lanes):
        axes.set_xlabel(
            f"and {len(step.lanes) - len(lanes)} more replicas, in timeline.html", color=style.SOFT
        )
    style.legend(axes, phases_of(lanes))
    return figure


def phases_of(lanes: list[Lane]) -> list[str]:
    """The phases of the lanes in order of their start."""
    bars = sorted((bar for lane in lanes for bar in lane.bars), key=lambda bar: (bar.start, -bar.ms))
    return list(dict.fromkeys(bar.phase for bar in bars))


def _title(record: Record, step: Step, count: int) -> str:
    rows = f", {step.rows} rows" if step.rows else ""
    return (
        f"{record.strategy} on {layout.stage(record)}: "
        f"a step of {units.ms(step.ms)}{rows} (typical of {count})"
    )


def _draw(axes: Axes, bar: Bar, place: int, whole: float) -> None:
    shade = palette.color(bar.phase)
    axes.barh(place, bar.ms, left=bar.start, height=0.78, color=shade, edgecolor=style.SOFT, linewidth=0.5)
    label = _label(bar, whole)
    if label:
        axes.text(
            bar.start + bar.ms / 2, place, style.escape(label), color=palette.ink(shade), fontsize=8,
            ha="center", va="center", clip_on=True,
        )  # fmt: skip


def _label(bar: Bar, whole: float) -> str:
    """The longest of name with time, name, nothing that fits into the bar."""
    share = bar.ms / whole if whole else 0
    name = bar.phase
    if bar.replica is not None:
        name = units.shapes(bar.inputs) if bar.inputs else f"replica {bar.replica}"
    for words in (f"{name} {units.ms(bar.ms)}", name):
        if len(words) * LETTER < share:
            return words
    return ""
