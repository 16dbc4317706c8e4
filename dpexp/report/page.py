"""timeline.html: one step of a run as lanes of bars, as a page.

Everything is inline and static, so that it works from a file and in MLflow's preview. It is light or dark as
the system is. All text from a Record passes ``in_html``.
"""

import math
from importlib.resources import files

from dpexp.config.printable import in_html
from dpexp.config.words import plural
from dpexp.record.view import RecordView
from dpexp.report import style, units
from dpexp.report.timeline import Bar, Lane, TimelineStep, typical_step

LEVEL_PX = 22
"""The height of a level of a lane, as ``page.css`` has it."""


def timeline_page(view: RecordView) -> str:
    """A complete page that shows a typical step."""
    record = view.record
    title = in_html(f"{record.strategy} · {record.execution} · {record.name or record.run_id}")
    css = files("dpexp.report").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{css}</style></head>\n"
        f"<body><h1>{title}</h1>{picture(view)}</body></html>\n"
    )


def picture(view: RecordView) -> str:
    """A typical step as lanes of bars under an axis, with a legend that has the medians of its phases."""
    colors, step = style.of_run(view), typical_step(view)
    if step is None:
        return ""
    rows = f", {plural(step.rows, 'row')}" if step.rows else ""
    text = (
        f"step {step.number}{rows}: {units.ms(step.ms)}; it is the most typical of "
        f"{plural(len(view.spans), 'step')}; the legend has medians, and a bar the time in this step"
    )
    legend = "".join(
        f'<span><i style="background:{colors[phase.name]}"></i>'
        f"{in_html(phase.name)} {units.ms(phase.median)}</span> "
        for phase in view.phases
    )
    lanes = (_lane(lane, step, colors) for lane in step.lanes)
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


def _lane(lane: Lane, step: TimelineStep, colors: dict[str, str]) -> str:
    bars = "".join(
        _bar(bar, number, step, colors[bar.phase])
        for number, level in enumerate(lane.levels)
        for bar in level
        if bar.ms
    )
    height = LEVEL_PX * max(1, len(lane.levels))
    return f'<b>{in_html(lane.name)}</b><div class="track" style="height:{height}px">{bars}</div>'


def _bar(bar: Bar, level: int, step: TimelineStep, color: str) -> str:
    """A bar; on hover its phase, device and time are shown."""
    time = f"{units.ms(bar.ms)}, {units.percent(bar.ms / step.ms)} of the step"
    facts = (f"{bar.phase}, {bar.owner}".removesuffix(", "), f"on {bar.device}", time)
    left, width = 100 * bar.start / step.end, 100 * bar.ms / step.end
    look = f"left:{left:.3f}%;width:{width:.3f}%;top:{LEVEL_PX * level}px;background:{color}"
    title, name = in_html("\n".join(facts)), in_html(bar.name)
    return f'<span class="bar" style="{look};color:{style.ink(color)}" title="{title}"><i>{name}</i></span>'
