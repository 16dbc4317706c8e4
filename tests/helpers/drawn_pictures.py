"""What a test asks of a picture: which texts are cut or overlap, its bars, and the numbers at its axis."""

import itertools
import math

from dpexp.report.figures.chart import AXIS
from dpexp.report.figures.picture import Bar, Picture
from dpexp.report.figures.style import SOFT


def illegible_texts(picture: Picture) -> list[tuple[str, ...]]:
    """Texts that are cut, one by one, and those that overlap, in pairs."""
    boxes = [(text.text, text.ends) for text in picture.texts if text.text.strip()]
    assert len(boxes) > 1, "a picture has a title and more"
    found: list[tuple[str, ...]] = []
    for text, (left, upper, right, lower) in boxes:
        if min(left, upper) < 0 or right > picture.width or lower > picture.height:
            found.append((text,))
    for (first, a), (second, b) in itertools.combinations(boxes, 2):
        if min(a[2], b[2]) - max(a[0], b[0]) > 1 and min(a[3], b[3]) - max(a[1], b[1]) > 1:
            found.append((first, second))
    return found


def bars(picture: Picture) -> list[Bar]:
    """The bars of a chart: lines and the colours of its legend have no outline."""
    return [shape for shape in picture.shapes if isinstance(shape, Bar) and shape.outline is not None]


def has_round_ticks(picture: Picture) -> bool:
    """Whether a chart has three times or more at its axis, which differ by a round number each."""
    at_axis = [text.text for text in picture.texts if (text.size, text.color) == (AXIS, SOFT)]
    ticks = [float(text.split()[0].replace(",", "")) for text in at_axis]
    steps = [later - earlier for earlier, later in itertools.pairwise(ticks)]
    digits = steps[0] / 10 ** math.floor(math.log10(steps[0]) + 1e-6)
    is_round = any(math.isclose(digits, size, rel_tol=1e-6) for size in (1, 2, 2.5, 5))
    return len(ticks) >= 3 and is_round and all(math.isclose(each, steps[0], rel_tol=1e-6) for each in steps)
