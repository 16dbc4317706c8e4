"""What a test asks of a figure: which texts are cut or overlap, and which axes lack round ticks."""

import itertools
import math
from collections.abc import Iterator

from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text


def draw(figure: Figure) -> None:
    """Give everything in the figure its place."""
    FigureCanvasAgg(figure).draw()


def illegible_texts(figure: Figure) -> list[tuple[str, ...]]:
    """Texts of a drawn figure that are cut, one by one, and those that overlap, in pairs."""
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts_of(figure)]
    assert len(boxes) > 1, "a figure has a title and more"
    found: list[tuple[str, ...]] = []
    for text, box in boxes:
        beyond = max(-box.x0, -box.y0, box.x1 - figure.bbox.width, box.y1 - figure.bbox.height)
        found += [(text,)] if beyond > 1 else []
    for (first, a), (second, b) in itertools.combinations(boxes, 2):
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1:
            found.append((first, second))
    return found


def texts_of(figure: Figure) -> list[Text]:
    """Every text that is drawn: ticks outside their axis are not."""
    beyond = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            ticks = axis.get_major_ticks()
            if axes.axison:
                low, high = sorted(axis.get_view_interval())
                ticks = [tick for tick in ticks if not low <= tick.get_loc() <= high]
            beyond |= {label for tick in ticks for label in (tick.label1, tick.label2)}
    return [
        text
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and text not in beyond
    ]


def axes_without_round_ticks(figure: Figure) -> list[tuple[str, list[float]]]:
    """The axes of numbers with fewer than three visible ticks, or whose ticks are not round."""
    return [
        (axis.axis_name, ticks)
        for axis, ticks in _axes(figure)
        if len(ticks) < 3
        or not (_are_steps(ticks) if axis.get_scale() == "linear" else _have_few_digits(ticks))
    ]


def _axes(figure: Figure) -> Iterator[tuple[Axis, list[float]]]:
    """The axes of numbers, and their visible ticks; rows of names are numbered downwards."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if axes.axison and not axis.get_inverted():
                low, high = sorted(axis.get_view_interval())
                yield axis, [tick for tick in axis.get_majorticklocs() if low <= tick <= high]


def _are_steps(ticks: list[float]) -> bool:
    """Whether neighbours differ by the same 1, 2, 2.5 or 5 times a power of ten."""
    steps = [later - earlier for earlier, later in itertools.pairwise(ticks)]
    digits = steps[0] / 10 ** math.floor(math.log10(steps[0]) + 1e-6)
    is_round = any(math.isclose(digits, size, rel_tol=1e-6) for size in (1, 2, 2.5, 5))
    return is_round and all(math.isclose(step, steps[0], rel_tol=1e-6) for step in steps)


def _have_few_digits(ticks: list[float]) -> bool:
    """Whether each has four digits at most, as powers of two and values of options do."""
    return all(math.isclose(float(f"{tick:.4g}"), tick, rel_tol=1e-9) for tick in ticks)
