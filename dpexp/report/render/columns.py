"""Columns: rows of words set under one another, as the plain texts of the command line have them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def columns(rows: Iterable[tuple[Any, ...]], indent: int = 2) -> list[str]:
    """One line a row, every column as wide as its longest word; all rows have the same length."""
    cells = [tuple(str(cell) for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        " " * indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
