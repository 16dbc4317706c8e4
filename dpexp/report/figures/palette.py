"""Palette: one colour for each phase, in the terminal, in figures and in pages.

Every colour is legible on white, on black and on the greys that Jupyter's themes put behind rows: its
contrast there is at least 3:1, as WCAG 2.2 asks of graphics. The phases of one strategy stay distinct with
every kind of colour blindness. Tests compute both; the colours were found by a search from Okabe and Ito's
palette (2008). Colour is never the only sign: every bar has its name on it or beside it.
"""

PHASES = {
    "scatter": "#BC8100",
    "replicate": "#AF510E",
    "parallel_apply": "#0890F2",
    "gather": "#948C40",
    "forward": "#387293",
    "backward": "#0F9D73",
    "optimizer": "#D32298",
    "loss": "#768CC6",
    "embedding": "#5F58E4",
    "transfer": "#FF2E72",
    "dense": "#277492",
    "allreduce": "#988523",
    "allreduce_tables": "#BC8100",
    "all_to_all_ids": "#AF510E",
    "all_to_all_vectors": "#AF510E",
    "all_to_all_gradients": "#AF510E",
    "all-gather": "#948C40",
    "backward all-gather": "#948C40",
    "reduce-scatter": "#BC8100",
}
STEP = "#687482"
OTHER = "#808890"


def color(phase: str) -> str:
    """The colour of a phase as ``#rrggbb``; a part of a phase has that of it; else grey."""
    if phase == "step":
        return STEP
    return PHASES.get(phase) or PHASES.get(phase.partition("_bucket")[0].removesuffix("_compute"), OTHER)


def ink(background: str) -> str:
    """Black or white, whichever reads better on the background (WCAG's contrast)."""
    return max("#000000", "#FFFFFF", key=lambda ink: contrast(ink, background))


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, 1 to 21 (WCAG 2.2)."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(rgb: str) -> float:
    """Relative luminance of ``#rrggbb``, 0 to 1 (WCAG 2.2)."""
    channels = (int(rgb[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
