"""phases.png: where the time of a step goes, median and spread by phase."""

from dpexp.config.ranges import plural
from dpexp.record.figures.phase_times import REST
from dpexp.record.figures.step_times import quartiles
from dpexp.record.view import RecordView
from dpexp.report import units
from dpexp.report.analysis import layout
from dpexp.report.analysis.phases import is_visible
from dpexp.report.figures import chart, palette, style
from dpexp.report.figures.fonts import text_pixels
from dpexp.report.figures.picture import Picture, Text, pixels

_WIDTH, _ROW = 10.0, 0.36
_SPACE = 10
"""Pixels between a bar and its text, and between that and the right edge."""


def phases_figure(view: RecordView) -> Picture:
    """A bar for each phase and the rest: its median, a line between its quartiles, its share of a step.

    Steps that cannot be judged have no shares.
    """
    record, bars = view.record, [*view.phases, *([view.rest] if view.rest is not None else [])]
    samples = view.phase_samples | {REST: view.rest_samples}
    spreads = [quartiles(samples[bar.name]) for bar in bars]
    is_judged = view.noise is None and view.phase_noise is None
    colors = palette.of_run(view)
    texts = [
        (f"{units.percent(bar.share)}   " if is_judged else "")
        + f"{units.ms(bar.median)} [{units.ms(low)} – {units.ms(high)}]"
        for bar, (low, _, high) in zip(bars, spreads, strict=True)
    ]
    names = ["    " * bar.depth + bar.name for bar in bars]
    width, count = pixels(_WIDTH), max(bar.n for bar in bars)
    axis = width - _SPACE - chart.names_width(names)
    where, total = f"{record.strategy} on {layout.stage(record)}", units.ms(view.timed_ms)
    made = chart.rows_of(
        f"{where}: where a step of {total} goes (median [quartiles] of {plural(count, 'step')})",
        dict(enumerate(names)), len(bars), pixels(_ROW), width,
        _longest([high for _, _, high in spreads], texts, axis),
        right=width - _SPACE, is_axis_above=False,
    )  # fmt: skip
    for place, (bar, (low, _, high), text) in enumerate(zip(bars, spreads, texts, strict=True)):
        if is_visible(bar):
            made.bar(place, 0.0, bar.median, colors[bar.name], 0.66)
            y = round(made.y(place))
            if made.x(high) - made.x(low) >= 1:
                made.picture.add_line((made.x(low), y - 1, made.x(high), y + 1), style.INK)
        made.picture.add(Text(made.x(high) + _SPACE, made.y(place), text, chart.NAMES))
    return made.picture


def _longest(ends: list[float], texts: list[str], axis: float) -> float:
    """The time at the right end of an axis of so many pixels: the text after each of these times fits."""
    places = [max(1.0, axis - _SPACE - text_pixels(text, chart.NAMES)) for text in texts]
    return max(end * axis / place for end, place in zip(ends, places, strict=True)) or 1.0
