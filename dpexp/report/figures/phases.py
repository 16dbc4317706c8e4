"""phases.png: where the time of a step goes, median and spread by phase."""

from matplotlib.figure import Figure

from dpexp.record.figures.step_times import quartiles
from dpexp.record.view import RecordView
from dpexp.report import units
from dpexp.report.analysis import layout
from dpexp.report.analysis.phases import is_visible
from dpexp.report.figures import palette, style


def phases_figure(view: RecordView) -> Figure:
    """A bar for each phase: its median, a line from first to third quartile, its share of the step."""
    record, bars = view.record, view.phases
    figure, axes = style.figure_with_axes(10.0, 1.2 + 0.34 * len(bars))
    spreads = [quartiles(view.phase_samples[bar.name]) for bar in bars]
    longest = max(high for _, _, high in spreads) or 1.0
    for place, (bar, (low, _, high)) in enumerate(zip(bars, spreads, strict=True)):
        if is_visible(bar):
            axes.barh(place, bar.median, height=0.66, color=palette.color(bar.name), **style.EDGE)
            axes.plot([low, high], [place, place], color=style.INK, linewidth=1.4, solid_capstyle="butt")
        text = f"{units.percent(bar.share)}   {units.ms(bar.median)} [{units.ms(low)} – {units.ms(high)}]"
        end = high + 0.012 * longest
        axes.text(end, place, text, va="center", fontsize=9, color=style.INK)
    names = ["    " * bar.depth + bar.name for bar in bars]
    style.label_rows(axes, names)
    for label in axes.get_yticklabels():
        label.set_horizontalalignment("left")
    axes.tick_params(axis="y", pad=8 + 72 * max(style.text_width(name, 9) for name in names))
    axes.set_xlim(0, longest * 1.3)
    style.time_axis(axes)
    where, total = f"{record.strategy} on {layout.stage(record)}", units.ms(view.timed_ms)
    count = max(bar.n for bar in bars)
    style.title(axes, f"{where}: where a step of {total} goes (median [quartiles] of {count} steps)")
    return figure
