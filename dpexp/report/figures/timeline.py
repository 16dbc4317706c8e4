"""timeline.png: one typical step, phases and replicas as lanes by device."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpexp.config.ranges import plural
from dpexp.record.view import RecordView
from dpexp.report import units
from dpexp.report.analysis import layout
from dpexp.report.analysis.phases import SMALLEST_SHARE
from dpexp.report.analysis.timeline import Bar, TimelineStep, typical_step
from dpexp.report.figures import palette, style

_WIDTH, LANE, _MARGIN = 10.0, 0.3, 1.45
MOST_LANES = 40
"""Further lanes are left out of the figure (and counted below it); the HTML page has all."""
LETTER = 0.0085
"""Width of a letter as a share of the lane: decides whether a label fits into its bar."""


def timeline_figure(view: RecordView, steps: list[TimelineStep]) -> Figure:
    """The typical step of the run; ``steps`` must not be empty."""
    record, step = view.record, typical_step(steps)
    assert step is not None
    lanes = step.lanes[:MOST_LANES]

    def is_drawn(bar: Bar) -> bool:  # a share that reads 0.0% is not a bar
        return bar.ms > 0 and bar.ms >= SMALLEST_SHARE * step.ms

    figure, axes = style.figure_with_axes(_WIDTH, _MARGIN + LANE * len(lanes))
    for place, lane in enumerate(lanes):
        for bar in filter(is_drawn, lane.bars):
            _draw(axes, bar, place, step.ms)
    style.label_rows(axes, [lane.name for lane in lanes])
    axes.set_xlim(0, step.ms or 1)
    style.time_axis(axes)
    axes.xaxis.tick_top()
    rows = f", {plural(step.rows, 'row')}" if step.rows else ""
    where = f"{record.strategy} on {layout.stage(record)}"
    like = plural(sum(each.is_usual for each in steps), "step")
    style.title(axes, f"{where}: one step, of {units.ms(step.ms)}{rows} (typical of {like})")
    if omitted := len(step.lanes) - len(lanes):
        axes.set_xlabel(f"and {omitted} more replicas, in timeline.html", color=style.SOFT)
    bars = [bar for lane in lanes for bar in filter(is_drawn, lane.bars)]
    shown = sorted(bars, key=lambda bar: (bar.start, -bar.ms))
    style.legend(axes, list(dict.fromkeys(bar.phase for bar in shown)))
    return figure


def _draw(axes: Axes, bar: Bar, place: int, step_ms: float) -> None:
    color = palette.color(bar.phase)
    axes.barh(place, bar.ms, left=bar.start, height=0.78, color=color, **style.EDGE)
    label = _label(bar, bar.ms / step_ms if step_ms else 0)
    if label:
        style.text_on(axes, bar.start + bar.ms / 2, place, label, color, 8)


def _label(bar: Bar, share: float) -> str:
    """Name and time of a bar, or its name, or nothing: the longest text that fits into the bar."""
    name = units.shapes_text(bar.inputs) if bar.replica is not None and bar.inputs else bar.name
    return next((text for text in (f"{name} {units.ms(bar.ms)}", name) if len(text) * LETTER < share), "")
