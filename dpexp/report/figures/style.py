"""Style: the look of every figure, a light card that reads well on a light page and on a dark one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dpexp.report import units
from dpexp.report.figures import palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER, INK, SOFT, LINE = "#FBFBFC", "#1B1F24", "#5A6472", "#C9CED6"
DPI = 110
MARKERS = "osD^vPX*"
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


def plain(axes: Axes) -> None:
    """Remove the frame except the lower line, and draw soft ticks and a light grid along x."""
    axes.set_facecolor(PAPER)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(LINE)
    axes.tick_params(colors=INK, length=0, labelsize=9)
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)


def rows(axes: Axes, labels: Sequence[str], margin: float = 0.6) -> None:
    """Label the rows from top to bottom, with a margin above the first."""
    axes.set_yticks(range(len(labels)), [escape(label) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -margin)


def time_axis(axes: Axes) -> None:
    """Label the x axis with times; its values are in ms."""
    axes.xaxis.set_major_formatter(lambda value, _: units.ms(value))
    axes.tick_params(axis="x", labelsize=8, labelcolor=SOFT)


def title(axes: Axes, text: str, below: str = "") -> None:
    """A title at the left; ``below`` in smaller letters under it."""
    pad = 22 if below else 8
    axes.set_title(escape(text), loc="left", fontsize=11, fontweight="bold", color=INK, pad=pad)
    if below:
        axes.text(0, 1, escape(below), transform=axes.transAxes, fontsize=9, color=SOFT, va="bottom")


def text_on(axes: Axes, x: float, y: float, text: str, background: str, size: float) -> None:
    """A text in the middle of a bar of this colour."""
    color = palette.ink(background)
    axes.text(x, y, escape(text), color=color, fontsize=size, ha="center", va="center", clip_on=True)


def escape(text: str) -> str:
    """The text with escaped dollar signs: matplotlib would read them as formulas."""
    return text.replace("$", r"\$")


def legend(axes: Axes, phases: Sequence[str]) -> None:
    """The colours of the phases, in a row under the axes."""
    from matplotlib.patches import Patch

    axes.legend(
        handles=[Patch(facecolor=palette.color(phase), label=phase) for phase in phases],
        loc="upper left",
        bbox_to_anchor=(0, -0.02),
        bbox_transform=axes.transAxes,
        ncols=len(phases) if len(phases) <= 8 else 6,
        frameon=False,
        fontsize=8.5,
        labelcolor=INK,
        handlelength=1,
        handleheight=1,
        columnspacing=1.2,
    )
