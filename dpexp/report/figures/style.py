"""How every picture looks: a light card that reads on a light page and on a dark one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpexp.report import units
from dpexp.report.figures import palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER, INK, SOFT, LINE = "#FBFBFC", "#1B1F24", "#5A6472", "#C9CED6"


def figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, without pyplot's global state."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(width, height), facecolor=PAPER, layout="constrained")
    drawn.get_layout_engine().set(w_pad=0.1, h_pad=0.1)  # type: ignore[union-attr, call-arg]
    return drawn


def plain(axes: Axes) -> None:
    """Quiet axes: no frame but the lower line, soft ticks, a light grid along x."""
    axes.set_facecolor(PAPER)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(LINE)
    axes.tick_params(colors=INK, length=0, labelsize=9)
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)


def title(axes: Axes, words: str, below: str = "") -> None:
    """A title at the left; ``below`` in smaller letters under it."""
    axes.set_title(
        escape(words), loc="left", fontsize=11, fontweight="bold", color=INK, pad=22 if below else 8
    )
    if below:
        axes.text(
            0, 1, escape(below), transform=axes.transAxes, fontsize=9, color=SOFT, va="bottom", ha="left"
        )


def escape(words: str) -> str:
    """The words with dollar signs as they are: matplotlib would read them as formulas."""
    return words.replace("$", r"\$")


def legend(axes: Axes, phases: list[str]) -> None:
    """The phases' colours, in a row under the axes."""
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


def ms(value: float) -> str:
    """A time for a picture."""
    return units.ms(value)
