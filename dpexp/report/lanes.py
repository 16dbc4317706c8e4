"""Lanes: a step of a timeline as HTML, and several as the data from which ``timeline.js`` draws them alike.

Places and widths are parts of the step, so that they are short, and what bars share is written once::

    {"looks": [style, …],                                                       one for each phase
     "kinds": [[look, name, facts before the time, facts after it], …],
     "lanes": [name, …],
     "steps": {number: [end, unit of the axis, [[lane, level, …], …]], …}}

A level has four items for each of its bars: kind, gap to the bar before, width, and time.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any, NamedTuple

from dpexp.config.printable import in_html, printable
from dpexp.report import style, units
from dpexp.report.timeline import Bar, TimelineStep

PARTS = 1_000_000
"""The parts of a step; where a page is zoomed in as far as it can be, one is some pixels wide."""
LEVEL_PX = 22
"""The height of a level, as ``timeline.css`` has it."""
LANE_LETTERS = 22
"""Longer names of lanes are shortened."""


class DrawnBar(NamedTuple):
    """A bar as it is shown: its place from ``left`` to ``right`` in parts of the step."""

    bar: Bar
    left: int
    right: int
    time: str

    @property
    def facts(self) -> tuple[str, str]:
        """What is shown on hover before the time and after it, a line each: phase, device, shapes, bytes."""
        bar = self.bar
        before = f"{bar.phase}, {bar.owner}".removesuffix(", ") + f"\non {bar.device}\n"
        shapes = {"in  ": bar.inputs, "out ": bar.outputs}
        after = [word + units.repeated(map(units.shape, found)) for word, found in shapes.items() if found]
        after += [] if bar.bytes is None else [f"moves {units.size(bar.bytes)}"]
        return printable(before), printable("".join(f"\n{line}" for line in after))


def step_html(step: TimelineStep, colors: Mapping[str, str]) -> str:
    """The lanes of a step under their axis; the axis is in the unit that its first cell names."""
    end, unit = _end(step)
    marks = "".join(_tick(tick, 100 * tick / end if end else 0.0) for tick in _ticks(end))
    names = units.short_names([lane.name for lane in step.lanes], LANE_LETTERS)
    lanes = "".join(
        _lane(name, _levels(lane.levels, step.ms), colors)
        for name, lane in zip(names, step.lanes, strict=True)
    )
    return (
        f'<section data-step="{step.number}" data-end="{end:.12g}"><div class="lanes">'
        f'<div class="lane axis"><b>{unit}</b><div class="track">{marks}</div></div>{lanes}</div></section>'
    )


def step_data(steps: Sequence[TimelineStep], colors: Mapping[str, str]) -> dict[str, Any]:
    """The steps as ``timeline.js`` reads them."""
    names = list(dict.fromkeys(lane.name for step in steps for lane in step.lanes))
    kinds: dict[tuple[Any, ...], int] = {}
    looks = {phase: place for place, phase in enumerate(colors)}

    def level(bars: Sequence[DrawnBar]) -> Iterator[Any]:
        end = 0
        for drawn in bars:
            kind = (looks[drawn.bar.phase], printable(drawn.bar.name), *drawn.facts)
            yield from (
                kinds.setdefault(kind, len(kinds)),
                drawn.left - end,
                drawn.right - drawn.left,
                drawn.time,
            )
            end = drawn.right

    found = {}
    for step in steps:
        end, unit = _end(step)
        lanes = [
            [names.index(lane.name), *(list(level(bars)) for bars in _levels(lane.levels, step.ms))]
            for lane in step.lanes
        ]
        found[step.number] = [float(f"{end:.12g}"), unit, lanes]
    shown = [printable(name) for name in units.short_names(names, LANE_LETTERS)]
    return {"looks": list(map(_look, colors.values())), "kinds": list(kinds), "lanes": shown, "steps": found}


def _end(step: TimelineStep) -> tuple[float, str]:
    """The time of a step in its unit."""
    factor, unit = units.time_unit(step.ms)
    return step.ms * factor, unit


def _levels(levels: Sequence[Sequence[Bar]], step_ms: float) -> list[list[DrawnBar]]:
    """The bars of each level that took time."""
    return [[_drawn(bar, step_ms) for bar in level if bar.ms] for level in levels]


def _drawn(bar: Bar, step_ms: float) -> DrawnBar:
    share = bar.ms / step_ms if step_ms else 1.0
    start, end = (_parts(bar.start, step_ms), _parts(bar.end, step_ms)) if step_ms else (0, PARTS)
    return DrawnBar(bar, start, end, f"{units.ms(bar.ms)}, {units.percent(share)}")


def _parts(ms: float, step_ms: float) -> int:
    share = ms / step_ms
    return round(PARTS * share) if math.isfinite(share) else 0


def _look(color: str) -> str:
    return f"background:{color};color:{style.ink(color)}"


def _ticks(end: float) -> list[float]:
    """Five multiples or more of 1, 2, 2.5 or 5 times a power of ten, as ``timeline.js`` finds them."""
    if not 0 < end < math.inf:
        return [0.0]
    power = math.floor(math.log10(end))
    sizes = (size * 10.0**exponent for exponent in count(power, -1) for size in (5.0, 2.5, 2.0, 1.0))
    size = next(size for size in sizes if 4 * size <= end * (1 + 1e-9))
    return [number * size for number in range(math.floor(end / size + 1e-9) + 1)]


def _tick(value: float, left: float) -> str:
    place = "start" if left < 3 else "end" if left > 97 else "middle"
    return f'<span style="left:{left:.9g}%"><i class="{place}">{value:.10g}</i></span>'


def _lane(name: str, levels: Sequence[Sequence[DrawnBar]], colors: Mapping[str, str]) -> str:
    bars = chain.from_iterable(
        (_bar(drawn, level, colors) for drawn in bars) for level, bars in enumerate(levels)
    )
    track = f'<div class="track" style="height:{LEVEL_PX * max(1, len(levels))}px">{"".join(bars)}</div>'
    return f'<div class="lane"><b>{in_html(name)}</b>{track}</div>'


def _bar(drawn: DrawnBar, level: int, colors: Mapping[str, str]) -> str:
    before, after = drawn.facts
    place = f"left:{drawn.left / 1e4:g}%;width:{(drawn.right - drawn.left) / 1e4:g}%"
    top = f"top:{LEVEL_PX * level}px;" if level else ""
    look, facts = _look(colors[drawn.bar.phase]), in_html(f"{before}{drawn.time} of the step{after}")
    name = f"<i>{in_html(drawn.bar.name)}</i>"
    return f'<span class="bar" style="{top}{place};{look}" title="{facts}">{name}</span>'
