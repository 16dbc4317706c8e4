"""Palette: one colour for each phase, in the terminal, in figures and in pages.

Most are Okabe and Ito's palette for colour-blind readers (2008); the others are chosen so that phases of one
strategy stay distinct with every kind of colour blindness (a test computes it). Colour is never the only
sign: every bar has its name on it or beside it.
"""

PHASES = {
    "scatter": "#E69F00",
    "replicate": "#D55E00",
    "parallel_apply": "#0072B2",
    "gather": "#F0E442",
    "forward": "#56B4E9",
    "backward": "#009E73",
    "optimizer": "#CC79A7",
    "loss": "#C0C6CE",
    "embedding": "#5B4FC4",
    "transfer": "#A0326E",
    "dense": "#88CCEE",
    "allreduce": "#7A6A00",
}
STEP = "#5F6B7A"
OTHER = "#B0B0B0"


def color(phase: str) -> str:
    """The colour of a phase as ``#rrggbb``; grey for an unknown one."""
    return STEP if phase == "step" else PHASES.get(phase, OTHER)


def ink(background: str) -> str:
    """Black or white, whichever reads better on the background (WCAG's contrast)."""
    return "#000000" if luminance(background) > 0.18 else "#FFFFFF"


def luminance(rgb: str) -> float:
    """Relative luminance of ``#rrggbb``, 0 to 1 (WCAG 2.2)."""
    channels = (int(rgb[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
