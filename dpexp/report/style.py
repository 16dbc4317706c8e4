"""Style: one look for every figure, and one colour for each phase on every screen.

A PNG is a light card, which reads well on a light page and on a dark one. The colour of a phase has a
contrast of at least 3:1 on white, on black and on Jupyter's greys, as WCAG 2.2 asks of graphics. Phases of
one strategy stay distinct with every kind of colour blindness: the colours were found by a search from Okabe
and Ito's palette (2008).
"""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from dpexp.config.printable import printable
from dpexp.record.phases import REST
from dpexp.record.view import RecordView
from dpexp.report import units

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER, INK, SOFT, LINE = "#FBFBFC", "#1B1F24", "#5A6472", "#C9CED6"
MARKERS = "osD^vPX*"
EDGE: dict[str, Any] = {"edgecolor": SOFT, "linewidth": 0.5}
"""The outline of a bar."""
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
    "all-gather": "#948C40",
    "backward all-gather": "#B110FD",
    "reduce-scatter": "#BC8100",
    REST: "#808890",
}
SPARE = ("#02A503", "#FD0201", "#C16782", "#F206DF", "#AF7B61", "#729A07", "#CA3035", "#925998")
"""The first colours of all other phases: buckets, and those that only a user's layout has."""


def of_run(view: RecordView) -> dict[str, str]:
    """{phase: its colour as ``#rrggbb``} for all phases of a run, the same on each screen."""
    phases = {*view.record.phases, *(str(row["phase"]) for row in view.record.timeline), REST}
    names, spare = sorted(phases - {"step"}, key=lambda name: (len(name), name)), cycle(SPARE)
    return {name: PHASES.get(name) or next(spare) for name in names}


def ink(background: str) -> str:
    """Black or white, whichever reads better on the background (WCAG's contrast)."""
    return "#000000" if luminance(background) > 0.179 else "#FFFFFF"


def luminance(rgb: str) -> float:
    """Relative luminance of ``#rrggbb``, 0 to 1 (WCAG 2.2)."""
    channels = (int(rgb[place : place + 2], 16) / 255 for place in (1, 3, 5))
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


# --- figures -------------------------------------------------------------------------------------


def figure_with_axes(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of this size in inches, without pyplot's global state, with one axes.

    It has no frame but its lower line, soft ticks, and a light grid along x.
    """
    from matplotlib.figure import Figure  # not for texts

    figure = Figure((width, height), facecolor=PAPER)
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.1)
    axes = figure.add_subplot(facecolor=PAPER, axisbelow=True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(LINE)
    axes.tick_params(colors=INK, length=0, labelsize=9)
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    return figure, axes


def png(figure: Figure) -> bytes:
    """The figure as a PNG; a letter that the font has not is drawn as a box."""
    drawn = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        figure.savefig(drawn, dpi=110, format="png")
    return drawn.getvalue()


def label_rows(axes: Axes, labels: Sequence[str], margin: float = 0.6) -> None:
    """Label the rows from top to bottom, with a margin above the first."""
    axes.set_yticks(range(len(labels)), list(map(escape, labels)))
    axes.set_ylim(len(labels) - 0.4, -margin)


def time_axis(axes: Axes) -> None:
    """Label the x axis with times in one unit; its values are in ms and its limits are set."""
    factor, unit = units.time_unit(max(axes.get_xlim()))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value * factor:,.10g} {unit}")
    axes.tick_params(axis="x", labelsize=8, labelcolor=SOFT)


def title(axes: Axes, text: str, below: str = "") -> None:
    """A title from the left edge, in as many lines as it needs; ``below`` in smaller letters under it."""
    figure = axes.figure
    inches = figure.bbox.width / figure.dpi
    lines = escape(textwrap.fill(text, int(9 * inches)))
    figure.suptitle(lines, x=0.12 / inches, ha="left", fontsize=11, fontweight="bold", color=INK)
    axes.set_title(escape(textwrap.fill(below, int(10 * inches))), loc="left", fontsize=9, color=SOFT)


def escape(text: str) -> str:
    """The printable text with escaped dollar signs: matplotlib would read them as formulas."""
    return printable(text).replace("$", r"\$")
