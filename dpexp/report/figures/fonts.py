"""Fonts: how wide a text is, and in which lines it fits; it is drawn in matplotlib's font."""

from __future__ import annotations

import functools
import importlib.util
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dpexp.config.printable import printable_line

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

DPI = 110
"""Pixels an inch."""


@functools.cache
def font(size: float, is_bold: bool = False) -> FreeTypeFont:
    """The font in a size in points. matplotlib, with which it comes, is not imported for that."""
    from PIL import ImageFont

    spec = importlib.util.find_spec("matplotlib")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("figures need the font of matplotlib, which is not installed")
    fonts = Path(spec.submodule_search_locations[0]) / "mpl-data" / "fonts" / "ttf"
    name = "DejaVuSans-Bold.ttf" if is_bold else "DejaVuSans.ttf"
    return ImageFont.truetype(fonts / name, size * DPI / 72, layout_engine=ImageFont.Layout.BASIC)


def text_pixels(text: str, size: float, is_bold: bool = False) -> float:
    """The width of a line of text in pixels."""
    return float(font(size, is_bold).getlength(printable_line(text)))


def widest(texts: Iterable[str], size: float, is_bold: bool = False) -> float:
    """The width of the widest of these lines in pixels."""
    return max((text_pixels(text, size, is_bold) for text in texts), default=0.0)


def wrapped(text: str, width: float, size: float, is_bold: bool = False) -> list[str]:
    """The text in lines of at most this width in pixels; between words where it can be."""
    letters = len(text)
    while True:
        lines = textwrap.wrap(text, max(1, letters))
        found = widest(lines, size, is_bold)
        if found <= width or letters <= 1:
            return lines
        letters = min(letters - 1, int(letters * width / found))
