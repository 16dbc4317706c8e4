"""A comparison as files: one page with its tables and figures, and its rows as CSV."""

import base64
from pathlib import Path

from matplotlib.figure import Figure

from dpexp.config.printable import in_html
from dpexp.record.phases import REST
from dpexp.record.view import RecordView
from dpexp.report import page, style, units
from dpexp.report.compare import Comparison, Group
from dpexp.report.data import to_csv
from dpexp.report.table import comparison_sections, dates, labels, shown_cells

MOST_FIGURES, MOST_BARS = 4, 24
_NOISY, _UNKNOWN = "too noisy to divide", "shares not known"
"""Why a bar is one part."""


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Write ``report.html`` and ``report.csv`` into the folder, which is created if missing."""
    sections = list(map(page.section, comparison_sections(comparison)))
    several = [place for place, group in enumerate(comparison.groups) if len(group.cells) > 1]
    for place in several[:MOST_FIGURES]:
        sections[place] += inline(
            step_figure(comparison.groups[place]), f"Step times of comparison {place + 1}"
        )
    written = {
        folder / "report.html": page.document("Comparison of runs", "".join(sections)),
        folder / "report.csv": to_csv(comparison),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in written.items():
        path.write_text(content, encoding="utf-8", errors="backslashreplace")
    return [*written]


def step_figure(group: Group) -> Figure:
    """A bar for each cell, as long as its step time, divided as the phase-timed steps of its first run are.

    Without phases inside others. The bar of a run that cannot be judged is not divided.
    """
    cells = shown_cells(group)[:MOST_BARS]
    bars = [_parts(cell.views[0]) for cell in cells]
    figure, axes = style.figure_with_axes(10.0, 1.3 + 0.4 * len(cells))
    colors = style.colors({name for parts in bars for name in parts} - {_NOISY, _UNKNOWN})
    for row, (cell, parts) in enumerate(zip(cells, bars, strict=True)):
        left, full = 0.0, sum(parts.values())
        for name, share in parts.items():
            ms, color = cell.typical_ms * share / full, colors.get(name, style.PHASES[REST])
            axes.barh(row, ms, left=left, height=0.66, color=color, **style.EDGE)
            left += ms
        text = ", ".join([units.ms(cell.typical_ms), *(name for name in parts if name not in colors)])
        axes.text(left, row, f"  {text}", va="center", fontsize=8.5, color=style.INK)
    style.label_rows(axes, labels(cells))
    axes.margins(x=0.3)
    style.time_axis(axes)
    axes.xaxis.tick_top()
    style.title(axes, f"Step time by phase, {group.key.execution} on {group.key.machine[0]}, {dates(cells)}")
    style.legend(axes, {name: colors[name] for parts in bars for name in parts if name in colors})
    return figure


def _parts(view: RecordView) -> dict[str, float]:
    """{phase, or the rest: its share of a step}; one part where a step has no shares."""
    if view.phase_noise:
        return {_NOISY: 1.0}
    found = [phase for phase in (*view.phases, *filter(None, [view.rest])) if phase.depth == 0]
    return {phase.name: phase.share for phase in found if phase.share} or {_UNKNOWN: 1.0}


def inline(figure: Figure, name: str) -> str:
    """The figure as a PNG inside the page."""
    data = base64.b64encode(style.png(figure)).decode()
    return f'<p><img alt="{in_html(name)}" src="data:image/png;base64,{data}"></p>'
