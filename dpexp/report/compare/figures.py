"""Figures of a comparison: step time by phase, and scaling over devices with the ideal line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpexp.record import load
from dpexp.report import units
from dpexp.report.analysis.phases import Phase, phases
from dpexp.report.analysis.statistics import Interval
from dpexp.report.compare.grouping import Cell, Comparison, Group
from dpexp.report.compare.tables import names, shown
from dpexp.report.figures import palette, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_BARS = 24
MARKERS = "osD^vPX*"


def phases_figure(group: Group) -> Figure | None:
    """A stacked bar a cell: the median of each phase of a step, phases inside others left out."""
    cells = shown(group)[:MOST_BARS]
    stacks = [(cell, _top(cell)) for cell in cells]
    stacks = [(cell, stack) for cell, stack in stacks if stack]
    if not stacks:
        return None
    called = names(cells)
    figure = style.figure(10.0, 1.3 + 0.4 * len(stacks))
    axes = figure.add_subplot()
    style.plain(axes)
    for place, (_, stack) in enumerate(stacks):
        left = 0.0
        for phase in stack:
            axes.barh(
                place, phase.median, left=left, height=0.66, color=palette.color(phase.name),
                edgecolor=style.SOFT, linewidth=0.5,
            )  # fmt: skip
            left += phase.median
        axes.text(left, place, f"  {units.ms(left)}", va="center", fontsize=8.5, color=style.INK)
    axes.set_yticks(range(len(stacks)), [style.escape(called[id(cell)]) for cell, _ in stacks])
    axes.set_ylim(len(stacks) - 0.4, -0.6)
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(lambda value, _: units.ms(value))
    axes.xaxis.tick_top()
    style.title(
        axes, f"Step time by phase, {group.execution} on {group.machine[0]} (medians, timed phase by phase)"
    )
    style.legend(axes, list(dict.fromkeys(phase.name for _, stack in stacks for phase in stack)))
    return figure


def _top(cell: Cell) -> list[Phase]:
    return [phase for phase in phases(load(cell.folders[0])) if phase.depth == 0]


def scaling_figure(comparison: Comparison) -> Figure | None:
    """Speed-up over devices, an axes a group that has several numbers of devices; None where none has."""
    groups = [group for group in comparison.groups if len({cell.devices for cell in group.cells}) > 1][:4]
    if not groups:
        return None
    figure = style.figure(5.2 * len(groups), 4.4)
    for place, group in enumerate(groups, start=1):
        _scaling(figure.add_subplot(1, len(groups), place), group)
    return figure


def _scaling(axes: Axes, group: Group) -> None:
    style.plain(axes)
    axes.grid(axis="y", color=style.LINE, linewidth=0.6)
    baseline, cells = group.baseline, shown(group)
    counts = sorted({cell.devices for cell in cells})
    axes.plot(
        counts,
        [count / baseline.devices for count in counts],
        color=style.SOFT,
        linestyle="--",
        label="ideal",
    )
    lines: dict[str, list[Cell]] = {}
    for cell in cells:
        lines.setdefault(cell.first.strategy, []).append(cell)
    shades = list(palette.PHASES.values())
    for number, (strategy, line) in enumerate(sorted(lines.items())):
        line.sort(key=lambda cell: cell.devices)
        gained = [Interval(1, 1, 1) if cell is baseline else cell.speed_up(baseline) for cell in line]
        axes.errorbar(
            [cell.devices for cell in line],
            [one.value for one in gained],
            yerr=[[one.value - one.low for one in gained], [one.high - one.value for one in gained]],
            marker=MARKERS[number % len(MARKERS)],
            color=shades[(2 + 3 * number) % len(shades)],
            linewidth=1.4,
            capsize=3,
            label=strategy,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.set_xlabel("devices", color=style.INK)
    axes.legend(frameon=False, fontsize=8.5, labelcolor=style.INK)
    emulated = "emulated devices share one CPU: overhead, not speed" if group.execution == "virtual" else ""
    style.title(
        axes,
        f"Speed-up over {names([baseline])[id(baseline)]}",
        emulated or f"{group.execution}, {group.machine[0]}",
    )
