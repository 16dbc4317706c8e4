"""HTML: timeline.html for one run, and a fragment with the story for a notebook.

Everything is inline, so that a page works from a file, in MLflow's sandboxed preview and without a
network. Without scripts the typical step shows and the browser's own tooltips serve. Every word that
comes from a Record is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from dpexp.record import Record
from dpexp.report import sections as report_sections
from dpexp.report import units
from dpexp.report.analysis import timeline
from dpexp.report.analysis.phases import Phase
from dpexp.report.analysis.timeline import Bar, Lane, Step
from dpexp.report.figures import palette
from dpexp.report.sections import Section, Table

MOST_STEPS = 20
"""More steps than these stay out of the page; trace.json has them all."""


def timeline_page(record: Record, steps: list[Step]) -> str:
    """A page of its own: every step as lanes, a picker for steps, zoom, and facts on hover."""
    name = escape(record.name or record.run_id)
    chosen = timeline.typical(steps)
    shown = _around(steps, chosen)
    legend = "".join(_swatch(phase) for phase in _phases(shown))
    options = "".join(_option(step, step is chosen) for step in shown)
    body = "".join(_step(step, hidden=step is not chosen) for step in shown)
    heading = f"{escape(record.strategy)} · {escape(record.execution)} · {name}"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Timeline of {name}</title><style>{_asset('timeline.css')}</style></head>\n"
        f'<body class="dpexp page"><h1>{heading}</h1>'
        f'<p class="tools"><label>step <select id="step">{options}</select></label> '
        '<button id="in" type="button">zoom in</button> <button id="out" type="button">zoom out</button></p>'
        f'<p class="legend">{legend}</p><main>{body}</main><div id="tip" role="status" hidden></div>'
        f"<script>{_asset('timeline.js')}</script></body></html>\n"
    )


def fragment(record: Record) -> str:
    """The story of a run and its typical step, for a notebook: no script, its style beside it."""
    chosen = timeline.typical(timeline.steps(record))
    told = report_sections.sections(record)
    parts = [_section(section) for section in told]
    if chosen is not None:
        drawn = f"<h4>Timeline: {escape(_step_name(chosen))}</h4>{_step(chosen)}"
        place = next((i for i, one in enumerate(told) if one.title == "Findings"), len(parts))
        parts.insert(place, drawn)
    return f'<div class="dpexp"><style>{_asset("timeline.css")}</style>{"".join(parts)}</div>'


def document(title: str, body: str) -> str:
    """A whole page around a body that is HTML already."""
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_asset('timeline.css')}</style></head>\n"
        f'<body class="dpexp page"><h1>{escape(title)}</h1>{body}</body></html>\n'
    )


def sections(told: Sequence[Section]) -> str:
    """Sections as HTML."""
    return "".join(map(_section, told))


def _asset(name: str) -> str:
    return files("dpexp.report").joinpath(name).read_text(encoding="utf-8")


# --- the timeline --------------------------------------------------------------------------------


def _around(steps: list[Step], chosen: Step | None) -> list[Step]:
    """The first steps, the chosen one among them."""
    first = steps[:MOST_STEPS]
    return first if chosen is None or chosen in first else [*first[:-1], chosen]


def _step_name(step: Step) -> str:
    rows = f", {step.rows} rows" if step.rows else ""
    return f"{step.number}: {units.ms(step.ms)}{rows}"


def _option(step: Step, chosen: bool) -> str:
    mark = " selected" if chosen else ""
    return f'<option value="{step.number}"{mark}>{escape(_step_name(step))}</option>'


def _phases(steps: list[Step]) -> list[str]:
    return list(dict.fromkeys(bar.phase for step in steps for bar in step.bars))


def _swatch(phase: str) -> str:
    return f'<span><i style="background:{palette.color(phase)}"></i>{escape(phase)}</span> '


def _step(step: Step, hidden: bool = False) -> str:
    lanes = "".join(_lane(lane, step.ms) for lane in step.lanes)
    ticks = "".join(
        f'<span style="left:{25 * quarter}%">{units.ms(step.ms * quarter / 4)}</span>' for quarter in range(5)
    )
    axis = f'<div class="lane axis"><b></b><div class="track">{ticks}</div></div>'
    return (
        f'<section data-step="{step.number}"{" hidden" if hidden else ""}><div class="lanes">'
        f"{axis}{lanes}</div></section>"
    )


def _lane(lane: Lane, whole: float) -> str:
    bars = "".join(_bar(bar, whole) for bar in lane.bars)
    return f'<div class="lane"><b>{escape(lane.name)}</b><div class="track">{bars}</div></div>'


def _bar(bar: Bar, whole: float) -> str:
    left, width = (100 * bar.start / whole, 100 * bar.ms / whole) if whole else (0.0, 100.0)
    shade = palette.color(bar.phase)
    look = f"left:{left:.3f}%;width:{width:.3f}%;background:{shade};color:{palette.ink(shade)}"
    told = escape(facts(bar, whole))
    return f'<span class="bar" tabindex="0" style="{look}" title="{told}">{escape(bar.name)}</span>'


def facts(bar: Bar, whole: float) -> str:
    """What hovering shows: phase, device, time, shapes, bytes; a line each."""
    lines = [
        bar.phase if bar.replica is None else f"{bar.phase}, replica {bar.replica}",
        f"on {bar.device}",
        units.ms(bar.ms) + (f", {units.percent(bar.ms / whole)} of the step" if whole else ""),
    ]
    if bar.inputs:
        lines.append("in  " + units.repeated(map(units.shape, bar.inputs)))
    if bar.outputs:
        lines.append("out " + units.repeated(map(units.shape, bar.outputs)))
    if bar.bytes is not None:
        lines.append(f"moves {units.size(bar.bytes)}")
    return "\n".join(lines)


# --- the story -----------------------------------------------------------------------------------


def _section(section: Section) -> str:
    parts = [f'<h4 class="{section.mood}">{escape(section.title)}</h4>']
    if section.lines:
        parts.append("<ul>" + "".join(f"<li>{escape(line)}</li>" for line in section.lines) + "</ul>")
    if section.bars:
        parts.append("<table>" + "".join(map(_phase, section.bars)) + "</table>")
    if section.table is not None and section.table.rows:
        parts.append(table(section.table))
    if section.commands:
        rows = (
            f"<tr><td>{escape(what)}</td><td><code>{escape(line)}</code></td></tr>"
            for what, line in section.commands
        )
        parts.append(f"<table>{''.join(rows)}</table>")
    return "".join(parts)


def table(content: Table) -> str:
    """An HTML table."""
    head = "".join(f"<th>{escape(word)}</th>" for word in content.columns)
    rows = ("<tr>" + "".join(f"<td>{escape(word)}</td>" for word in row) + "</tr>" for row in content.rows)
    more = f"<p>… and {content.more} more rows</p>" if content.more else ""
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>{more}"


def _phase(bar: Phase) -> str:
    width = min(100.0, 100 * bar.share)
    return (
        f'<tr><td style="padding-left:{1 + bar.depth}em">{escape(bar.name)}</td><td class="share">'
        f'<i style="width:{width:.1f}%;background:{palette.color(bar.name)}"></i></td>'
        f"<td>{units.percent(bar.share)}</td><td>{units.ms(bar.median)} [IQR {units.ms(bar.iqr)}]</td></tr>"
    )
