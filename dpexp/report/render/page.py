"""HTML: timeline.html for one run, and a fragment with sections and timeline for a notebook.

Everything is inline, so that a page works from a file, in MLflow's sandboxed preview and without a
network. Without scripts the typical step is shown, with the browser's own tooltips. All text from a Record
passes ``escape``.
"""

from collections.abc import Iterable
from html import escape as escaped
from importlib.resources import files

from dpexp.config.printable import printable
from dpexp.config.ranges import plural
from dpexp.record.figures.phase_times import Phase
from dpexp.record.view import RecordView
from dpexp.report import sections as report_sections
from dpexp.report import ticks, units
from dpexp.report.analysis import timeline
from dpexp.report.analysis.phases import is_visible, phase_text
from dpexp.report.analysis.timeline import Bar, Lane, TimelineStep
from dpexp.report.figures import palette
from dpexp.report.section import Section, Table

MOST_STEPS = 20
"""Further steps are left out of the page; trace.json has them all."""
LANE_LETTERS = 22
"""Longer names of lanes are shortened."""


def timeline_page(view: RecordView, steps: list[TimelineStep]) -> str:
    """A complete page: every step as lanes, a menu of steps, zoom, and details on hover.

    A bar has the time of its own step, and the legend the medians, which every other screen has.
    """
    record = view.record
    name = record.name or record.run_id
    chosen = timeline.typical_step(steps)
    shown = steps[:MOST_STEPS]
    if chosen is not None and chosen not in shown:
        shown[-1] = chosen
    phases = dict.fromkeys(bar.phase for step in shown for bar in step.bars if bar.ms)
    options = "".join(_option(step, step is chosen) for step in shown)
    body = "".join(_step(step, hidden=step is not chosen) for step in shown)
    content = (
        f'<p class="tools"><label>step <select id="step">{options}</select></label> '
        '<button id="in" type="button">zoom in</button> <button id="out" type="button">zoom out</button></p>'
        f'<p class="legend">{"".join(_legend_entry(phase, view) for phase in phases)}'
        f"</p>{_of_medians(view)}<main>{body}</main>"
        f'<div id="tip" role="status" hidden></div><script>{_asset("timeline.js")}</script>'
    )
    meta = '<meta name="viewport" content="width=device-width">'
    heading = f"{record.strategy} · {record.execution} · {name}"
    return document(f"Timeline of {name}", content, heading=heading, meta=meta)


def fragment(view: RecordView) -> str:
    """The sections of a run and its typical step, for a notebook: no script, and its style inline."""
    chosen = timeline.typical_step(timeline.steps(view))
    content = report_sections.sections(view, full=True)
    parts = [section(part) for part in content]
    if chosen is not None:
        titles = [part.title for part in content]
        place = titles.index("Findings") if "Findings" in titles else len(parts)
        title = f"Timeline of one step, {_step_name(chosen)}: the times of its bars are not medians"
        parts.insert(place, f"<h4>{escape(title)}</h4>{_step(chosen)}")
    return f'<div class="dpexp"><style>{_asset("timeline.css")}</style>{"".join(parts)}</div>'


def document(title: str, body: str, *, heading: str = "", meta: str = "") -> str:
    """A complete page around a body in HTML; the heading is the title unless given."""
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">{meta}<title>{escape(title)}</title>'
        f"<style>{_asset('timeline.css')}</style></head>\n"
        f'<body class="dpexp page"><h1>{escape(heading or title)}</h1>{body}</body></html>\n'
    )


def escape(text: str) -> str:
    """The text as it is shown, without markup of HTML, in an element or in quotes."""
    return escaped(printable(text))


def _asset(name: str) -> str:
    return files("dpexp.report").joinpath(name).read_text(encoding="utf-8")


def _step_name(step: TimelineStep) -> str:
    rows = f", {plural(step.rows, 'row')}" if step.rows else ""
    return f"{step.number}: {units.ms(step.ms)}{rows}"


def _option(step: TimelineStep, chosen: bool) -> str:
    mark = " selected" if chosen else ""
    return f'<option value="{step.number}"{mark}>{escape(_step_name(step))}</option>'


def _legend_entry(phase: str, view: RecordView) -> str:
    median = view.phase_medians.get(phase)
    text = phase if median is None else f"{phase} {units.ms(median)}"
    return f'<span><i style="background:{palette.color(phase)}"></i>{escape(text)}</span> '


def _of_medians(view: RecordView) -> str:
    """Of which steps the medians of the legend are."""
    count = len(view.timed_steps)
    text = f"medians of {plural(count, 'step')}; a bar has the time of its step"
    return f'<p class="legend">{text}</p>' if count else ""


def _step(step: TimelineStep, hidden: bool = False) -> str:
    """The lanes of a step under their axis; the axis is in the unit that its first cell names."""
    factor, unit = units.time_unit(step.ms)
    end = step.ms * factor
    marks = "".join(_tick(tick, 100 * tick / end if end else 0.0) for tick in ticks.ticks(0.0, end))
    names = units.short_names([lane.name for lane in step.lanes], LANE_LETTERS)
    lanes = "".join(_lane(name, lane, step.ms) for name, lane in zip(names, step.lanes, strict=True))
    return (
        f'<section data-step="{step.number}" data-end="{end:.12g}"{" hidden" if hidden else ""}>'
        f'<div class="lanes"><div class="lane axis"><b>{unit}</b><div class="track">{marks}</div></div>'
        f"{lanes}</div></section>"
    )


def _tick(value: float, left: float) -> str:
    place = "start" if left < 3 else "end" if left > 97 else "middle"
    return f'<span style="left:{left:.9g}%"><i class="{place}">{value:.10g}</i></span>'


def _lane(name: str, lane: Lane, step_ms: float) -> str:
    bars = "".join(_bar(bar, step_ms) for bar in lane.bars if bar.ms)
    return f'<div class="lane"><b>{escape(name)}</b><div class="track">{bars}</div></div>'


def _bar(bar: Bar, step_ms: float) -> str:
    left, width = (100 * bar.start / step_ms, 100 * bar.ms / step_ms) if step_ms else (0.0, 100.0)
    color = palette.color(bar.phase)
    look = f"left:{left:.9g}%;width:{width:.9g}%;background:{color};color:{palette.ink(color)}"
    details = escape(_details(bar, step_ms))
    return f'<span class="bar" tabindex="0" style="{look}" title="{details}"><i>{escape(bar.name)}</i></span>'


def _details(bar: Bar, step_ms: float) -> str:
    """The text shown on hover, a line each: phase, device, time, shapes, bytes."""
    lines = [
        bar.phase if bar.replica is None else f"{bar.phase}, replica {bar.replica}",
        f"on {bar.device}",
        units.ms(bar.ms) + (f", {units.percent(bar.ms / step_ms)} of the step" if step_ms else ""),
    ]
    if bar.inputs:
        lines.append("in  " + units.repeated(map(units.shape, bar.inputs)))
    if bar.outputs:
        lines.append("out " + units.repeated(map(units.shape, bar.outputs)))
    if bar.bytes is not None:
        lines.append(f"moves {units.size(bar.bytes)}")
    return "\n".join(lines)


def section(section: Section) -> str:
    """A section as HTML."""
    parts = [f'<h4 class="{section.mood}">{escape(section.title)}</h4>']
    if section.lines:
        parts.append("<ul>" + "".join(f"<li>{escape(line)}</li>" for line in section.lines) + "</ul>")
    if section.bars:
        parts.append(_rows(map(_phase, section.bars)))
    if section.table is not None and section.table.rows:
        parts.append(_table(section.table))
    if section.commands:
        commands = (_row([escape(what), f"<code>{escape(line)}</code>"]) for what, line in section.commands)
        parts.append(_rows(commands))
    return "".join(parts)


def _table(content: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in content.columns)
    more = f"<p>… and {content.more} more rows</p>" if content.more else ""
    return _rows([f"<tr>{head}</tr>", *(_row(map(escape, row)) for row in content.rows)]) + more


def _rows(rows: Iterable[str]) -> str:
    """A table; one that is wider than the page scrolls, and the page does not."""
    return f'<div class="wide"><table>{"".join(rows)}</table></div>'


def _row(cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _phase(bar: Phase) -> str:
    width = min(100.0, 100 * bar.share)
    color = palette.color(bar.name)
    drawn = f'<i style="width:{width:.1f}%;background:{color}"></i>' if is_visible(bar) else ""
    return (
        f'<tr><td style="padding-left:{1 + bar.depth}em">{escape(bar.name)}</td>'
        f'<td class="share">{drawn}</td><td>{units.percent(bar.share)}</td>'
        f"<td>{escape(phase_text(bar))}</td></tr>"
    )
