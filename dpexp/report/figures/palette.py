"""Palette: one colour for each phase, in the terminal, in figures and in pages.

Every colour is legible on white, on black and on the greys that Jupyter's themes put behind rows: its
contrast there is at least 3:1, as WCAG 2.2 asks of graphics. The phases of one strategy stay distinct with
every kind of colour blindness; the colours were found by a search from Okabe and Ito's palette (2008).
Colour is never the only sign: every bar has its name on it or beside it.
"""

from collections.abc import Iterable
from itertools import cycle

from dpexp.record.figures.phase_times import REST
from dpexp.record.view import RecordView

PHASES = {
    "scatter": "#BC8100",
    "replicate": "#AF510E",
    "parallel_apply": "#0890F2",
    "gather": "#948C40",
    "forward": "#387293",
    "backward": "#0F9D73",
    "optimizer": "#D32298",
    "loss": "#768CC6",
    "embedding": "#5F58E4",
    "transfer": "#FF2E72",
    "dense": "#277492",
    "backward_compute": "#9F47CF",
    "overlap": "#5B742E",
    "allreduce": "#988523",
    "allreduce_tables": "#BC8100",
    "all_to_all_ids": "#AF510E",
    "all_to_all_vectors": "#547B3E",
    "all_to_all_gradients": "#9448BE",
    "all-gather": "#948C40",
    "backward all-gather": "#B110FD",
    "reduce-scatter": "#BC8100",
    REST: "#808890",
}
SPARE = ("#02A503", "#FD0201", "#C16782", "#F206DF", "#AF7B61", "#729A07", "#CA3035", "#925998")
"""The first colours of all other phases: buckets, and those that only a user's layout has."""


def of_run(view: RecordView) -> dict[str, str]:
    """The colours of all phases of a run: on each screen a phase has the same one."""
    timed = {str(row["phase"]) for row in view.record.timeline} - {"step"}
    return colors({*view.record.phases, *timed, REST})


def colors(phases: Iterable[str]) -> dict[str, str]:
    """{phase: its colour as ``#rrggbb``} for all phases of a run; those without one of their own in turn."""
    names = sorted(phases, key=lambda name: (len(name), name))
    spare = cycle(SPARE)
    return {name: PHASES.get(name) or next(spare) for name in names}


def ink(background: str) -> str:
    """Black or white, whichever reads better on the background (WCAG's contrast)."""
    return "#000000" if luminance(background) > 0.179 else "#FFFFFF"


def luminance(rgb: str) -> float:
    """Relative luminance of ``#rrggbb``, 0 to 1 (WCAG 2.2)."""
    channels = (int(rgb[place : place + 2], 16) / 255 for place in (1, 3, 5))
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
