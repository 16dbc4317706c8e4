"""Style: the look of every figure.

A PNG is a light card, which reads well on a light page and on a dark one; an SVG has the colours of its page.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpexp.config.printable import printable
from dpexp.report import ticks, units
from dpexp.report.figures import fonts, palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

PAPER, INK, SOFT, LINE = "#FBFBFC", "#1B1F24", "#5A6472", "#C9CED6"
MARKERS = "osD^vPX*"
_ROOM = 1.03
"""matplotlib draws a text up to so many times as wide as it is."""
_TITLE, _BELOW = 11.0, 9.0
"""The letters of a title and of the line below it, in points."""
_LINE_INCHES = 0.19
"""The height of a further line of a title."""
_MOST_LABELS = 1.4
"""The inches beside an axes that its labels may take where the line below a title must fit."""
LABEL_LETTERS = 44
"""Longer labels of rows are shortened."""
EDGE: dict[str, Any] = {"edgecolor": SOFT, "linewidth": 0.5}
"""The outline of a bar."""


def figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, without pyplot's global state."""
    from matplotlib.figure import Figure

    empty = Figure(figsize=(width, height), facecolor=PAPER, layout="constrained")
    empty.get_layout_engine().set(w_pad=0.1, h_pad=0.1)  # type: ignore[union-attr, call-arg]
    return empty


def figure_with_axes(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure of this size in inches with one plain axes."""
    made = figure(width, height)
    axes = made.add_subplot()
    plain(axes)
    return made, axes


def save_png(figure: Figure, path: Path) -> None:
    """Write the figure as ``savefig`` does, which draws it once more for its layout."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure.set_dpi(fonts.DPI)
    FigureCanvasAgg(figure).print_png(path)  # type: ignore[no-untyped-call]


def themed_svg(figure: Figure) -> str:
    """The figure as an element of a page, drawn in its ``--paper``, ``--ink``, ``--soft`` and ``--line``.

    The same figure has the same text: its ids are hashes of what they name.
    """
    from matplotlib import rc_context

    drawn = io.StringIO()
    with rc_context({"svg.hashsalt": "dpexp"}):
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    not_of_a_page = r'<metadata>.*?</metadata>|<!--.*?-->| xmlns(:xlink)?="[^"]*"|xlink:(?=href="#)'
    svg = re.sub(not_of_a_page, "", drawn.getvalue(), flags=re.DOTALL)
    for name, color in {"paper": PAPER, "ink": INK, "soft": SOFT, "line": LINE}.items():
        svg = svg.replace(color.lower(), f"var(--{name})")
    return svg[svg.index("<svg ") :]


def plain(axes: Axes) -> None:
    """Remove the frame except the lower line; three soft ticks or more, and a light grid along x."""
    from matplotlib.ticker import MaxNLocator

    axes.set_facecolor(PAPER)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], min_n_ticks=3))
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(LINE)
    axes.tick_params(colors=INK, length=0, labelsize=9)
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)


def label_rows(axes: Axes, labels: Sequence[str], margin: float = 0.6) -> None:
    """Label the rows from top to bottom, with a margin above the first; a label's first line is shortened."""
    lines = [label.partition("\n") for label in labels]
    short = units.short_names([first for first, *_ in lines], LABEL_LETTERS)
    texts = [escape("".join([name, *rest])) for name, (_, *rest) in zip(short, lines, strict=True)]
    axes.set_yticks(range(len(labels)), texts)
    axes.set_ylim(len(labels) - 0.4, -margin)


def time_axis(axes: Axes) -> None:
    """Label the x axis with times in one unit; its values are in ms and its limits are set."""
    factor, unit = units.time_unit(max(axes.get_xlim()))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value * factor:,.10g} {unit}")
    axes.tick_params(axis="x", labelsize=8, labelcolor=SOFT)


def log_axis(axis: Axis, show: Callable[[float], str]) -> None:
    """Three round ticks or more on a logarithmic axis whose limits are set, or whose data are drawn."""
    low, high = sorted(axis.get_view_interval())
    found = ticks.log_ticks(low, high)
    axis.set_ticks(found, [show(tick) for tick in found])
    axis.set_ticks([], minor=True)


def title(axes: Axes, text: str, below: str = "") -> None:
    """A title from the left edge, in as many lines as it needs; ``below`` in smaller letters under it."""
    from matplotlib.figure import Figure

    figure = axes.get_figure()
    assert figure is not None
    inches = figure.bbox.width / figure.get_dpi()
    lines = _wrapped(text, inches - 0.3, _TITLE, is_bold=True)
    figure.suptitle(lines, x=0.12 / inches, ha="left", fontsize=_TITLE, fontweight="bold", color=INK)
    if below:
        lines = _wrapped(below, inches - _MOST_LABELS, _BELOW)
        axes.set_title(lines, loc="left", fontsize=_BELOW, color=SOFT)
    if isinstance(figure, Figure):
        figure.set_figheight(figure.get_figheight() + _LINE_INCHES * lines.count("\n"))


def _wrapped(text: str, inches: float, size: float, is_bold: bool = False) -> str:
    """The text in lines of at most this width, escaped; between words where it can be."""
    return escape("\n".join(fonts.wrapped(text, inches * fonts.DPI / _ROOM, size, is_bold)))


def text_on(axes: Axes, x: float, y: float, text: str, background: str, size: float) -> None:
    """A text in the middle of a bar of this colour."""
    color = palette.ink(background)
    axes.text(x, y, escape(text), color=color, fontsize=size, ha="center", va="center", clip_on=True)


def escape(text: str) -> str:
    """The printable text with escaped dollar signs: matplotlib would read them as formulas."""
    return printable(text).replace("$", r"\$")


def legend(axes: Axes, colors: Mapping[str, str]) -> None:
    """The colours of the phases, in a row under the axes."""
    from matplotlib.patches import Patch

    axes.legend(
        handles=[Patch(facecolor=color, label=escape(phase)) for phase, color in colors.items()],
        loc="upper left",
        bbox_to_anchor=(0, -0.02),
        bbox_transform=axes.transAxes,
        ncols=len(colors) if len(colors) <= 8 else 6,
        frameon=False,
        fontsize=8.5,
        labelcolor=INK,
        handlelength=1,
        handleheight=1,
        columnspacing=1.2,
    )
