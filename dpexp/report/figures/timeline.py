"""timeline.png: one typical step, phases and replicas as lanes by device."""

import itertools

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpexp.config.ranges import plural
from dpexp.record.view import RecordView
from dpexp.report import units
from dpexp.report.analysis import layout
from dpexp.report.analysis.phases import SMALLEST_SHARE
from dpexp.report.analysis.timeline import Bar, Lane, TimelineStep, typical_step
from dpexp.report.figures import palette, style

_WIDTH, LANE, _MARGIN = 10.0, 0.3, 1.45
MOST_LEVELS = 40
"""Further levels of lanes are left out of the figure (and their lanes counted below it); the page has all."""
LETTER = 0.0085
"""Width of a letter as a share of the lane: decides whether a label fits into its bar."""


def timeline_figure(view: RecordView, steps: list[TimelineStep]) -> Figure:
    """The typical step of the run; ``steps`` must not be empty."""
    record, step = view.record, typical_step(steps)
    assert step is not None
    lanes, places = _lanes(step)

    def is_drawn(bar: Bar) -> bool:  # a share that reads 0.0% is not a bar
        return bar.ms > 0 and bar.ms >= SMALLEST_SHARE * step.ms

    figure, axes = style.figure_with_axes(_WIDTH, _MARGIN + LANE * places[-1])
    shown: list[Bar] = []
    colors = palette.colors({bar.phase for bar in step.bars})
    for first, lane in zip(places, lanes, strict=False):
        for place, level in enumerate(lane.levels[: MOST_LEVELS - first], first):
            bars = list(filter(is_drawn, level))
            shown += bars
            for bar in bars:
                _draw(axes, bar, place, step.ms, colors[bar.phase])
    style.label_rows(axes, [lane.name for lane in lanes], places=places)
    axes.set_xlim(0, step.ms or 1)
    style.time_axis(axes)
    axes.xaxis.tick_top()
    rows = f", {plural(step.rows, 'row')}" if step.rows else ""
    where = f"{record.strategy} on {layout.stage(record)}"
    like = plural(sum(each.is_usual for each in steps), "step")
    style.title(axes, f"{where}: one step, of {units.ms(step.ms)}{rows} (typical of {like})")
    if omitted := len(step.lanes) - len(lanes):
        axes.set_xlabel(f"and {plural(omitted, 'more lane')}, in timeline.html", color=style.SOFT)
    shown.sort(key=lambda bar: (bar.start, -bar.ms))
    style.legend(axes, {bar.phase: colors[bar.phase] for bar in shown})
    return figure


def _lanes(step: TimelineStep) -> tuple[list[Lane], list[int]]:
    """The lanes that are drawn, the row of each, and after those the number of rows."""
    heights = (max(1, len(lane.levels)) for lane in step.lanes)
    places = [min(MOST_LEVELS, place) for place in itertools.accumulate(heights, initial=0)]
    count = sum(place < MOST_LEVELS for place in places[:-1])
    return step.lanes[:count], places[: count + 1]


def _draw(axes: Axes, bar: Bar, place: int, step_ms: float, color: str) -> None:
    axes.barh(place, bar.ms, left=bar.start, height=0.78, color=color, **style.EDGE)
    label = _label(bar, bar.ms / step_ms if step_ms else 0)
    if label:
        style.text_on(axes, bar.start + bar.ms / 2, place, label, color, 8)


def _label(bar: Bar, share: float) -> str:
    """Name and time of a bar, or its name, or nothing: the longest text that fits into the bar."""
    name = units.shapes_text(bar.inputs) if bar.name != bar.phase and bar.inputs else bar.name
    return next((text for text in (f"{name} {units.ms(bar.ms)}", name) if len(text) * LETTER < share), "")
