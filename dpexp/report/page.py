"""HTML: timeline.html, one step of a run as lanes of bars, and what a notebook shows of a run.

Everything is inline and static, so that a page works from a file, in MLflow's preview and in a notebook.
It is light or dark as the system is, or as the notebook is. All text from a Record passes ``in_html``.
"""

import math
from collections.abc import Iterable
from importlib.resources import files

from dpexp.config.errors import plural
from dpexp.config.printable import in_html
from dpexp.record.view import RecordView
from dpexp.report import style, units
from dpexp.report.section import Bar, Section
from dpexp.report.sections import sections
from dpexp.report.timeline import Bar as TimelineBar
from dpexp.report.timeline import Lane, TimelineStep, typical_step

LEVEL_PX = 22
"""The height of a level of a lane, as ``page.css`` has it."""
LANE_LETTERS = 22
"""Longer names of lanes are shortened."""


def timeline_page(view: RecordView) -> str:
    """A complete page that shows a typical step."""
    record = view.record
    title = f"{record.strategy} · {record.execution} · {record.name or record.run_id}"
    return document(title, picture(view))


def fragment(view: RecordView) -> str:
    """The sections of a run and a typical step, for a notebook."""
    parts = [section(part) for part in sections(view, full=True)]
    if shown := picture(view):
        parts.append(f"<h4>Timeline of a step</h4>{shown}")
    return f'<div class="dpexp"><style>{_css()}</style>{"".join(parts)}</div>'


def document(title: str, body: str) -> str:
    """A complete page around a body in HTML."""
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{in_html(title)}</title>'
        f"<style>{_css()}</style></head>\n"
        f'<body class="dpexp page"><h1>{in_html(title)}</h1>{body}</body></html>\n'
    )


def _css() -> str:
    return files("dpexp.report").joinpath("page.css").read_text(encoding="utf-8")


# --- sections ------------------------------------------------------------------------------------


def section(section: Section) -> str:
    """A section as HTML."""
    parts = [f'<h4 class="{section.mood}">{in_html(section.title)}</h4>']
    if section.lines:
        parts.append("<ul>" + "".join(f"<li>{in_html(line)}</li>" for line in section.lines) + "</ul>")
    if section.bars:
        parts.append(_rows(map(_bar_row, section.bars)))
    if section.table is not None and section.table.rows:
        head = "".join(f"<th>{in_html(name)}</th>" for name in section.table.columns)
        parts.append(_rows([f"<tr>{head}</tr>", *(_row(map(in_html, row)) for row in section.table.rows)]))
        if section.table.more:
            parts.append(f"<p>… and {section.table.more} more rows</p>")
    if section.commands:
        commands = (_row([in_html(what), f"<code>{in_html(line)}</code>"]) for what, line in section.commands)
        parts.append(_rows(commands))
    return "".join(parts)


def _rows(rows: Iterable[str]) -> str:
    """A table; one that is wider than the page scrolls, and the page does not."""
    return f'<div class="wide"><table>{"".join(rows)}</table></div>'


def _row(cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _bar_row(bar: Bar) -> str:
    name = bar.name.lstrip()
    indent = 1 + (len(bar.name) - len(name)) / 2
    drawn = f'<i style="width:{min(100.0, 100 * bar.share):.1f}%;background:{bar.color}"></i>'
    return (
        f'<tr><td style="padding-left:{indent}em">{in_html(name)}</td>'
        f'<td class="share">{drawn}</td><td>{units.percent(bar.share)}</td><td>{in_html(bar.text)}</td></tr>'
    )


# --- a step --------------------------------------------------------------------------------------


def picture(view: RecordView) -> str:
    """A typical step as lanes of bars under an axis, with a legend that has the medians of its phases."""
    colors, step = style.of_run(view), typical_step(view)
    if step is None:
        return ""
    rows = f", {plural(step.rows, 'row')}" if step.rows else ""
    text = (
        f"step {step.number}{rows}: {units.ms(step.ms)}; it is the most typical of "
        f"{plural(len(view.timed_steps), 'step')}; the legend has medians, and a bar the time in this step"
    )
    legend = "".join(
        f'<span><i style="background:{colors[phase.name]}"></i>'
        f"{in_html(phase.name)} {units.ms(phase.median)}</span> "
        for phase in view.phases
    )
    names = units.short_names([lane.name for lane in step.lanes], LANE_LETTERS)
    lanes = (_lane(name, lane, step, colors) for name, lane in zip(names, step.lanes, strict=True))
    return (
        f'<p>{text}</p><p class="legend">{legend}</p>'
        f'<div class="lanes"><b></b><div class="axis">{_axis(step.end)}</div>{"".join(lanes)}</div>'
    )


def _axis(ms: float) -> str:
    """Ticks at 0 and at two to six round times."""
    if not 0 < ms < math.inf:
        return ""
    power = 10.0 ** math.floor(math.log10(ms))
    size = next(part * power for part in (2.0, 1.0, 0.5, 0.2) if ms >= 3 * part * power)
    ticks = (number * size for number in range(int(0.95 * ms / size) + 1))
    return "".join(f'<i style="left:{100 * tick / ms:.2f}%">{units.ms(tick)}</i>' for tick in ticks)


def _lane(name: str, lane: Lane, step: TimelineStep, colors: dict[str, str]) -> str:
    bars = "".join(
        _bar(bar, number, step, colors[bar.phase])
        for number, level in enumerate(lane.levels)
        for bar in level
        if bar.ms
    )
    height = LEVEL_PX * max(1, len(lane.levels))
    return f'<b>{in_html(name)}</b><div class="track" style="height:{height}px">{bars}</div>'


def _bar(bar: TimelineBar, level: int, step: TimelineStep, color: str) -> str:
    """A bar; on hover its phase, device and time are shown."""
    time = f"{units.ms(bar.ms)}, {units.percent(bar.ms / step.ms)} of the step"
    facts = (f"{bar.phase}, {bar.owner}".removesuffix(", "), f"on {bar.device}", time)
    left, width = 100 * bar.start / step.end, 100 * bar.ms / step.end
    look = f"left:{left:.3f}%;width:{width:.3f}%;top:{LEVEL_PX * level}px;background:{color}"
    title, name = in_html("\n".join(facts)), in_html(bar.name)
    return f'<span class="bar" style="{look};color:{style.ink(color)}" title="{title}"><i>{name}</i></span>'
