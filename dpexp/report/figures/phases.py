"""phases.png: where the time of a step goes, median and spread by phase."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpexp.config.ranges import plural
from dpexp.record.figures.phase_times import REST
from dpexp.record.figures.step_times import quartiles
from dpexp.record.view import RecordView
from dpexp.report import units
from dpexp.report.analysis import layout
from dpexp.report.analysis.phases import is_visible
from dpexp.report.figures import palette, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def phases_figure(view: RecordView) -> Figure:
    """A bar for each phase and the rest: its median, a line between its quartiles, its share of a step.

    Steps that cannot be judged have no shares.
    """
    record, bars = view.record, [*view.phases, *([view.rest] if view.rest is not None else [])]
    samples = view.phase_samples | {REST: view.rest_samples}
    is_judged = view.noise is None and view.phase_noise is None
    colors = palette.of_run(view)
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
