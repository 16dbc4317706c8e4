"""Picture: boxes, lines, arrows and texts at places in pixels, drawn by Pillow.

The figures of a run are drawn at the end of each run. matplotlib would take several times the processor time
for them, because it measures each text of an axes several times to find its place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dpexp.config.printable import printable_line
from dpexp.report.figures.fonts import DPI, font
from dpexp.report.figures.style import INK, LINE, PAPER, SOFT

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

_FINE = 4
"""What is slanted or round is drawn so many times as large, and then made smaller."""
_HEAD, _RIM = (9.0, 4.5), 1.2
"""Length and half the width of the head of an arrow; the dark rim around it."""
Ends = tuple[float, float, float, float]
"""Left, upper, right and lower end."""


def pixels(inches: float) -> int:
    """A length in pixels."""
    return round(inches * DPI)


@dataclass(frozen=True)
class Bar:
    """A filled rectangle; at least one pixel wide."""

    ends: Ends
    color: str
    outline: str | None = SOFT

    def draw(self, image: Image, on: ImageDraw) -> None:
        """Draw it with whole pixels."""
        left, upper, right, lower = map(round, self.ends)
        has_room = self.outline is not None and right - left > 2
        on.rectangle(
            (left, upper, max(left, right - 1), max(upper, lower - 1)), self.color,
            self.outline if has_room else None,
        )  # fmt: skip


@dataclass(frozen=True)
class Text:
    """A line of text; ``anchor`` says which of its points is at its place, as Pillow does."""

    x: float
    y: float
    text: str
    size: float
    color: str = INK
    anchor: str = "lm"
    is_bold: bool = False

    def draw(self, image: Image, on: ImageDraw) -> None:
        """Draw it from a whole pixel on, which keeps its letters sharp."""
        place, text = (round(self.x), round(self.y)), printable_line(self.text)
        on.text(place, text, self.color, font(self.size, self.is_bold), self.anchor)

    @property
    def ends(self) -> Ends:
        """The rectangle in which its letters are."""
        letters = font(self.size, self.is_bold)
        left, upper, right, lower = letters.getbbox(printable_line(self.text), anchor=self.anchor)
        return self.x + left, self.y + upper, self.x + right, self.y + lower


@dataclass(frozen=True)
class Card:
    """A white rectangle with round corners."""

    ends: Ends

    def draw(self, image: Image, on: ImageDraw) -> None:
        """Draw it smoothly."""
        left, upper, right, lower = map(round, self.ends)
        size = (right - left, lower - upper)
        for color, inner in ((SOFT, 0.0), ("#FFFFFF", 1.3)):
            mask, fine = _mask(size)
            ends = tuple(_FINE * each for each in (inner, inner, size[0] - inner, size[1] - inner))
            fine.rounded_rectangle(ends, _FINE * (9 - inner), 255)
            image.paste(color, (left, upper), mask.reduce(_FINE))


@dataclass(frozen=True)
class Arrow:
    """An arrow along these corners, with a thin dark rim."""

    corners: tuple[tuple[float, float], ...]
    color: str

    def draw(self, image: Image, on: ImageDraw) -> None:
        """Draw it smoothly."""
        xs, ys = zip(*self.corners, strict=True)
        left, upper = int(min(xs)) - 8, int(min(ys)) - 8
        size = (int(max(xs)) + 8 - left, int(max(ys)) + 8 - upper)
        *_, (x0, y0), (x1, y1) = self.corners
        length = max(1.0, math.hypot(x1 - x0, y1 - y0))
        dx, dy = (x1 - x0) / length, (y1 - y0) / length
        for color, rim in ((SOFT, _RIM), (self.color, 0.0)):
            mask, fine = _mask(size)

            def at(x: float, y: float) -> tuple[float, float]:
                return _FINE * (x - left), _FINE * (y - upper)

            long, wide = _HEAD[0] + rim, _HEAD[1] + rim
            neck = (x1 - long * dx, y1 - long * dy)
            line = [at(*corner) for corner in (*self.corners[:-1], neck)]
            fine.line(line, 255, round(_FINE * (2.4 + 2 * rim)), "curve")
            tip = (x1 + 1.5 * rim * dx, y1 + 1.5 * rim * dy)
            sides = [(neck[0] - side * dy, neck[1] + side * dx) for side in (wide, -wide)]
            fine.polygon([at(*corner) for corner in (tip, *sides)], 255)
            image.paste(color, (left, upper), mask.reduce(_FINE))


Shape = Bar | Text | Card | Arrow


@dataclass
class Picture:
    """Shapes on a light card, the later ones above the earlier; its size in pixels."""

    width: int
    height: int
    shapes: list[Shape] = field(default_factory=list)

    @property
    def texts(self) -> list[Text]:
        """Its texts, in the order in which they are drawn."""
        return [shape for shape in self.shapes if isinstance(shape, Text)]

    def add(self, *shapes: Shape) -> None:
        """Draw these, too."""
        self.shapes += shapes

    def add_line(self, ends: Ends, color: str = LINE) -> None:
        """A line along one of the sides, as a thin rectangle."""
        self.add(Bar(ends, color, outline=None))

    def save(self, path: Path) -> None:
        """Write it as PNG."""
        from PIL import Image, ImageDraw

        image = Image.new("RGB", (self.width, self.height), PAPER)
        on = ImageDraw.Draw(image)
        for shape in self.shapes:
            shape.draw(image, on)
        image.save(path, "PNG", dpi=(DPI, DPI))


def _mask(size: tuple[int, int]) -> tuple[Image, ImageDraw]:
    from PIL import Image, ImageDraw

    mask = Image.new("L", (_FINE * size[0], _FINE * size[1]))
    return mask, ImageDraw.Draw(mask)
