"""Phases as text, and which of them a chart draws."""

from dpexp.record.figures.phase_times import Phase
from dpexp.report import units

SMALLEST_SHARE = 0.0005
"""Smaller shares read 0.0%."""


def phase_text(phase: Phase) -> str:
    """Its time, and what it moves: ``0.21 ms [IQR 0.02 ms], 3.2 kB``."""
    moved = f", {units.size(phase.bytes)}" if phase.bytes else ""
    return f"{units.ms(phase.median)} [IQR {units.ms(phase.iqr)}]{moved}"


def is_visible(phase: Phase) -> bool:
    """Whether a chart draws it: a share that reads 0.0% is not a bar."""
    return phase.share >= SMALLEST_SHARE
