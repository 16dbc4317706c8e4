"""A comparison as files: Markdown with its figures beside it, and one self-contained HTML page.

The figures beside Markdown are PNGs; those in the page are SVGs, which follow its light or dark theme.
"""

from math import isfinite
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpexp.config.printable import in_html
from dpexp.record.phases import REST
from dpexp.record.record import Record
from dpexp.record.view import RecordView
from dpexp.report import markdown, page, style, table, units
from dpexp.report.compare import Cell, Comparison, Group
from dpexp.report.intervals import Interval
from dpexp.report.table import dates, labels, run_ids, shown_cells
from dpexp.report.units import is_visible

MOST_BARS = 24
_NOISY, _UNKNOWN = "too noisy to divide", "shares not known"
"""Why a bar is one part."""
_WIDEST = 10
"""An interval is drawn up to this many times the largest speed-up."""


def stacked_phases_figure(group: Group) -> Figure | None:
    """A bar for each cell, as long as its step time, divided as the phase-timed steps of its first run are.

    Without phases inside others. The bar of a run that cannot be judged is not divided.
    """
    stacks: list[tuple[Cell, dict[str, float]]] = []
    for cell in shown_cells(group)[:MOST_BARS]:
        view = RecordView(Record.load(cell.folder))
        if view.phases:
            stacks.append((cell, _parts(view)))
    if not stacks:
        return None
    figure, axes = style.figure_with_axes(10.0, 1.3 + 0.4 * len(stacks))
    colors = style.colors({name for _, parts in stacks for name in parts} - {_NOISY, _UNKNOWN})
    for row, (cell, parts) in enumerate(stacks):
        left, full = 0.0, sum(parts.values())
        for name, share in parts.items():
            ms = cell.typical_ms * share / full
            axes.barh(
                row, ms, left=left, height=0.66, color=colors.get(name, style.PHASES[REST]), **style.EDGE
            )
            left += ms
        text = ", ".join([units.ms(cell.typical_ms), *(name for name in parts if name not in colors)])
        axes.text(left, row, f"  {text}", va="center", fontsize=8.5, color=style.INK)
    drawn = [cell for cell, _ in stacks]
    style.label_rows(
        axes, [f"{label}\n{ids}" for label, ids in zip(labels(drawn), run_ids(drawn), strict=True)]
    )
    axes.margins(x=0.3)
    style.time_axis(axes)
    axes.xaxis.tick_top()
    where = f"{group.execution} on {group.machine[0]}"
    style.title(axes, f"Step time by phase, {where}, {dates(drawn)}")
    style.legend(axes, {name: colors[name] for _, parts in stacks for name in parts if name in colors})
    return figure


def _parts(view: RecordView) -> dict[str, float]:
    """{phase, or the rest: its share of a step}; one part where a step has no shares."""
    found = [phase for phase in (*view.phases, *filter(None, [view.rest])) if phase.depth == 0]
    parts = {phase.name: phase.share for phase in found if is_visible(phase) and isfinite(phase.share)}
    is_noisy = view.noise or view.phase_noise
    return {_NOISY: 1.0} if is_noisy else parts or {_UNKNOWN: 1.0}


def scaling_figure(group: Group) -> Figure | None:
    """Speed-up over devices; None for a group whose cells all have the same number."""
    if len({cell.devices for cell in group.cells}) == 1:
        return None
    figure = style.figure(7.0, 4.4)
    _scaling(figure.add_subplot(), group)
    return figure


def _error_bar(gain: Interval) -> tuple[float, float]:
    """How far the interval reaches below and above the value; nowhere for one run each."""
    return (gain.value - gain.low, gain.high - gain.value) if gain.is_known else (0.0, 0.0)


def _scaling(axes: Axes, group: Group) -> None:
    style.plain(axes)
    axes.grid(axis="y", color=style.LINE, linewidth=0.6)
    baseline, cells = group.baseline, shown_cells(group)
    counts = sorted({cell.devices for cell in cells})
    if len(counts) < 3:
        counts = sorted({*counts, *(counts[0] * 2**power for power in range(3))})
    ideal = [count / baseline.devices for count in counts]
    axes.plot(counts, ideal, color=style.SOFT, linestyle="--", label="ideal")
    lines: dict[str, list[Cell]] = {}
    for cell in cells:
        lines.setdefault(cell.first.strategy, []).append(cell)
    colors = list(dict.fromkeys(style.PHASES.values()))
    for number, (strategy, line) in enumerate(sorted(lines.items())):
        line.sort(key=lambda cell: cell.devices)
        gains = [Interval(1, 1, 1) if cell is baseline else cell.speed_up(baseline) for cell in line]
        axes.errorbar(
            [cell.devices for cell in line],
            [gain.value for gain in gains],
            yerr=list(zip(*map(_error_bar, gains), strict=True)),
            marker=style.MARKERS[number % len(style.MARKERS)],
            color=colors[(2 + 3 * number) % len(colors)],
            linewidth=1.4,
            capsize=3,
            label=style.escape(strategy),
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    gained = [cell.speed_up(baseline).value for cell in cells if cell is not baseline]
    _limit(axes, [*ideal, *gained])
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    style.log_axis(axes.yaxis, lambda value: f"{value:.10g}x")
    axes.set_xlabel("devices", color=style.INK)
    axes.legend(frameon=False, fontsize=8.5, labelcolor=style.INK)
    where = f"{group.execution}, {group.machine[0]}"
    if group.execution == "virtual":
        where = "emulated devices share one CPU: overhead, not speed"
    over = f"Speed-up over {labels([baseline])[0]} ({run_ids([baseline])[0]})"
    style.title(axes, over, f"{where}; {dates(cells)}")


def _limit(axes: Axes, values: list[float]) -> None:
    """Cut the y axis around these values: an interval may be so wide that it hides the rest."""
    bottom, top = axes.get_ylim()
    axes.set_ylim(max(bottom, min(values) / _WIDEST), min(top, max(values) * _WIDEST))


MOST_FIGURES = 4
"""At most this many groups have figures."""
_TITLE = "Comparison of runs"


def write_comparison(compared: Comparison, folder: Path) -> list[Path]:
    """Write ``report.md``, ``report.html`` and their PNGs into the folder, which is created if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = _figures(compared)
    text, html = f"# {_TITLE}\n", ""
    for number, section in enumerate(table.comparison_sections(compared)):
        beside = figures.get(number, {})
        text += f"\n{markdown.markdown_text([section])}"
        text += "".join(f"\n![{name}]({name}.png)\n" for name in beside)
        html += page.section(section) + "".join(_inline(*named) for named in beside.items())
    written = {folder / "report.md": text, folder / "report.html": page.document(_TITLE, html)}
    for path, content in written.items():
        path.write_text(content, encoding="utf-8", errors="backslashreplace")
    pictures = {
        folder / f"{name}.png": figure for beside in figures.values() for name, figure in beside.items()
    }
    for path, figure in pictures.items():
        style.save_png(figure, path)
    return [*written, *pictures]


def _figures(compared: Comparison) -> dict[int, dict[str, Figure]]:
    """The figures of each group by name, by its place: those of the first groups with several cells."""
    several = [group for group in compared.groups if len(group.cells) > 1] or compared.groups
    found = {}
    for group in several[:MOST_FIGURES]:
        place = compared.groups.index(group)
        drawn = {"phases": stacked_phases_figure(group), "scaling": scaling_figure(group)}
        found[place] = {f"{name}-{place + 1}": figure for name, figure in drawn.items() if figure is not None}
    return found


def _inline(name: str, figure: Figure) -> str:
    return f'<p role="img" aria-label="{in_html(name)}">{style.themed_svg(figure)}</p>'
