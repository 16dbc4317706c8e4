"""phases.png: where the time of a step goes, median and spread by phase."""

from matplotlib.figure import Figure

from dpexp.config.ranges import plural
from dpexp.record.figures.phase_times import REST
from dpexp.record.figures.step_times import quartiles
from dpexp.record.view import RecordView
from dpexp.report import units
from dpexp.report.analysis import layout
from dpexp.report.analysis.phases import is_visible
from dpexp.report.figures import palette, style


def phases_figure(view: RecordView) -> Figure:
    """A bar for each phase and the rest: its median, a line between its quartiles, its share of a step.

    Steps that cannot be judged have no shares.
    """
    record, bars = view.record, [*view.phases, *([view.rest] if view.rest is not None else [])]
    figure, axes = style.figure_with_axes(10.0, 1.2 + 0.34 * len(bars))
    samples = view.phase_samples | {REST: view.rest_samples}
    spreads = [quartiles(samples[bar.name]) for bar in bars]
    is_judged = view.noise is None and view.phase_noise is None
    colors = palette.colors(bar.name for bar in bars)
    longest = max(high for _, _, high in spreads) or 1.0
    for place, (bar, (low, _, high)) in enumerate(zip(bars, spreads, strict=True)):
        if is_visible(bar):
            axes.barh(place, bar.median, height=0.66, color=colors[bar.name], **style.EDGE)
            axes.plot([low, high], [place, place], color=style.INK, linewidth=1.4, solid_capstyle="butt")
        share = f"{units.percent(bar.share)}   " if is_judged else ""
        text = f"{share}{units.ms(bar.median)} [{units.ms(low)} – {units.ms(high)}]"
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
    style.title(
        axes, f"{where}: where a step of {total} goes (median [quartiles] of {plural(count, 'step')})"
    )
    return figure
