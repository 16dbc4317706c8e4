"""HTML: timeline.html for one run, and a fragment with sections and timeline for a notebook.

Everything is inline, so that a page works from a file, in MLflow's sandboxed preview and without a
network. Without scripts the typical step is shown, with the browser's own tooltips; ``timeline.js`` draws the
others. All text from a Record passes ``in_html``.
"""

import json
from collections.abc import Iterable
from importlib.resources import files

from dpexp.config.printable import in_html
from dpexp.config.ranges import plural
from dpexp.record.phases import Phase
from dpexp.record.view import RecordView
from dpexp.report import sections as report_sections
from dpexp.report import style, timeline, units
from dpexp.report.lanes import step_data, step_html
from dpexp.report.section import Section, Table
from dpexp.report.timeline import TimelineStep
from dpexp.report.units import is_visible, phase_text

MOST_STEPS, MOST_BARS = 20, 600
"""Further steps are left out of the page, and such that it had more bars; ``trace.json`` has them all."""


def timeline_page(view: RecordView, steps: list[TimelineStep]) -> str:
    """A complete page: steps as lanes, a menu of them, zoom, and details on hover.

    A bar has the time of its own step, and the legend the medians, which every other screen has.
    """
    record = view.record
    name = record.name or record.run_id
    chosen = timeline.typical_step(steps)
    assert chosen is not None
    shown = _shown(steps, chosen)
    phases = dict.fromkeys(bar.phase for step in shown for bar in step.bars if bar.ms)
    colors = style.of_run(view)
    options = "".join(_option(step, step is chosen) for step in shown)
    data = json.dumps(step_data(shown, colors), separators=(",", ":")).replace("<", r"\u003c")
    content = (
        f'<p class="tools"><label>step <select id="step">{options}</select></label> '
        '<button id="in" type="button">zoom in</button> <button id="out" type="button">zoom out</button></p>'
        f'<p class="legend">{"".join(_legend_entry(phase, colors[phase], view) for phase in phases)}'
        f"</p>{_of_medians(view)}<main>{step_html(chosen, colors)}</main>"
        f'<div id="tip" role="status" hidden></div>'
        f"<script>const data = {data};\n{_asset('timeline.js')}</script>"
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
        parts.insert(place, f"<h4>{in_html(title)}</h4>{step_html(chosen, style.of_run(view))}")
    return f'<div class="dpexp"><style>{_asset("timeline.css")}</style>{"".join(parts)}</div>'


def document(title: str, body: str, *, heading: str = "", meta: str = "") -> str:
    """A complete page around a body in HTML; the heading is the title unless given."""
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">{meta}<title>{in_html(title)}</title>'
        f"<style>{_asset('timeline.css')}</style></head>\n"
        f'<body class="dpexp page"><h1>{in_html(heading or title)}</h1>{body}</body></html>\n'
    )


def _asset(name: str) -> str:
    return files("dpexp.report").joinpath(name).read_text(encoding="utf-8")


def _step_name(step: TimelineStep) -> str:
    rows = f", {plural(step.rows, 'row')}" if step.rows else ""
    return f"{step.number}: {units.ms(step.ms)}{rows}"


def _option(step: TimelineStep, chosen: bool) -> str:
    mark = " selected" if chosen else ""
    return f'<option value="{step.number}"{mark}>{in_html(_step_name(step))}</option>'


def _shown(steps: list[TimelineStep], chosen: TimelineStep) -> list[TimelineStep]:
    """The chosen step and the first ones, as many as a page has room for; at least the chosen one."""
    found, bars = [chosen], chosen.drawn
    for step in steps:
        if step is not chosen:
            bars += step.drawn
            if bars > MOST_BARS or len(found) == MOST_STEPS:
                break
            found.append(step)
    return sorted(found, key=lambda step: step.number)


def _legend_entry(phase: str, color: str, view: RecordView) -> str:
    median = view.phase_medians.get(phase)
    text = phase if median is None else f"{phase} {units.ms(median)}"
    return f'<span><i style="background:{color}"></i>{in_html(text)}</span> '


def _of_medians(view: RecordView) -> str:
    """Of which steps the medians of the legend are."""
    count = len(view.timed_steps)
    text = f"medians of {plural(count, 'step')}; a bar has the time of its step"
    return f'<p class="legend">{text}</p>' if count else ""


def section(section: Section) -> str:
    """A section as HTML."""
    parts = [f'<h4 class="{section.mood}">{in_html(section.title)}</h4>']
    if section.lines:
        parts.append("<ul>" + "".join(f"<li>{in_html(line)}</li>" for line in section.lines) + "</ul>")
    if section.bars:
        parts.append(_rows(_phase(bar, section.colors[bar.name]) for bar in section.bars))
    if section.table is not None and section.table.rows:
        parts.append(_table(section.table))
    if section.commands:
        commands = (_row([in_html(what), f"<code>{in_html(line)}</code>"]) for what, line in section.commands)
        parts.append(_rows(commands))
    return "".join(parts)


def _table(content: Table) -> str:
    head = "".join(f"<th>{in_html(name)}</th>" for name in content.columns)
    more = f"<p>… and {content.more} more rows</p>" if content.more else ""
    return _rows([f"<tr>{head}</tr>", *(_row(map(in_html, row)) for row in content.rows)]) + more


def _rows(rows: Iterable[str]) -> str:
    """A table; one that is wider than the page scrolls, and the page does not."""
    return f'<div class="wide"><table>{"".join(rows)}</table></div>'


def _row(cells: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _phase(bar: Phase, color: str) -> str:
    width = min(100.0, 100 * bar.share)
    drawn = f'<i style="width:{width:.1f}%;background:{color}"></i>' if is_visible(bar) else ""
    return (
        f'<tr><td style="padding-left:{1 + bar.depth}em">{in_html(bar.name)}</td>'
        f'<td class="share">{drawn}</td><td>{units.percent(bar.share)}</td>'
        f"<td>{in_html(phase_text(bar))}</td></tr>"
    )
