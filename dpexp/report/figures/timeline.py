"""timeline.png: one typical step, phases and replicas as lanes by device."""

import itertools

from dpexp.config.ranges import plural
from dpexp.record.view import RecordView
from dpexp.report import units
from dpexp.report.analysis import layout
from dpexp.report.analysis.phases import SMALLEST_SHARE
from dpexp.report.analysis.timeline import Bar, Lane, TimelineStep, typical_step
from dpexp.report.figures import chart, palette, style
from dpexp.report.figures.fonts import text_pixels
from dpexp.report.figures.picture import Picture, Text, pixels

_WIDTH, LANE = 10.0, 0.34
MOST_LEVELS = 40
"""Further levels are left out of the figure: their lanes, or bars, are counted below it. The page has all."""
_LETTERS, _PADDING = 8.0, 8


def timeline_figure(view: RecordView, steps: list[TimelineStep]) -> Picture:
    """The typical step of the run; ``steps`` must not be empty."""
    record, step = view.record, typical_step(steps)
    assert step is not None
    lanes, places = _lanes(step)

    def is_drawn(bar: Bar) -> bool:  # a share that reads 0.0% is not a bar
        return bar.ms > 0 and bar.ms >= SMALLEST_SHARE * step.ms

    drawn = [
        (place, bar)
        for first, lane in zip(places, lanes, strict=False)
        for place, level in enumerate(lane.levels[: MOST_LEVELS - first], first)
        for bar in filter(is_drawn, level)
    ]
    colors = palette.of_run(view)
    in_order = sorted((bar for _, bar in drawn), key=lambda bar: (bar.start, -bar.ms))
    shown = {bar.phase: colors[bar.phase] for bar in in_order}
    width = pixels(_WIDTH)
    legend = chart.legend_lines(shown, width - 2 * chart.LEFT)
    cut = sum(map(is_drawn, itertools.chain(*lanes[-1].levels[MOST_LEVELS - places[-2] :]))) if lanes else 0
    omitted = {"more lane": len(step.lanes) - len(lanes), "more bar": cut}
    more = [plural(count, what) for what, count in omitted.items() if count]
    below = [f"and {' and '.join(more)}, in timeline.html"] if more else []
    rows = f", {plural(step.rows, 'row')}" if step.rows else ""
    where = f"{record.strategy} on {layout.stage(record)}"
    like = plural(sum(each.is_usual for each in steps), "step")
    made = chart.rows_of(
        f"{where}: one step, of {units.ms(step.ms)}{rows} (typical of {like})",
        dict(zip(places, (lane.name for lane in lanes), strict=False)),
        places[-1], pixels(LANE), width, step.ms or 1.0,
        right=width - 10, is_axis_above=True, below=chart.TITLE_LINE * (len(legend) + len(below)),
    )  # fmt: skip
    for place, bar in drawn:
        _draw(made, bar, place, colors[bar.phase])
    y = round(made.y(places[-1] - 0.5)) + chart.TITLE_LINE
    for line in below:
        made.picture.add(Text(chart.LEFT, y, line, chart.NAMES, style.SOFT))
    chart.add_legend(made.picture, legend, y + chart.TITLE_LINE * len(below))
    return made.picture


def _lanes(step: TimelineStep) -> tuple[list[Lane], list[int]]:
    """The lanes that are drawn, the row of each, and after those the number of rows."""
    heights = (max(1, len(lane.levels)) for lane in step.lanes)
    places = [min(MOST_LEVELS, place) for place in itertools.accumulate(heights, initial=0)]
    count = sum(place < MOST_LEVELS for place in places[:-1])
    return step.lanes[:count], places[: count + 1]


def _draw(rows: chart.Rows, bar: Bar, place: int, color: str) -> None:
    left, _, right, _ = rows.bar(place, bar.start, bar.end, color, 0.78).ends
    label = _label(bar, right - left - _PADDING)
    if label:
        middle = ((left + right) / 2, rows.y(place))
        rows.picture.add(Text(*middle, label, _LETTERS, palette.ink(color), "mm"))


def _label(bar: Bar, width: float) -> str:
    """Name and time of a bar, or its name, or nothing: the longest text that fits into this width."""
    name = units.shapes_text(bar.inputs) if bar.name != bar.phase and bar.inputs else bar.name
    texts = (f"{name} {units.ms(bar.ms)}", name)
    return next((text for text in texts if text_pixels(text, _LETTERS) <= width), "")
