"""Noise as text: why a run, or its phases, cannot be judged."""

from dpexp.config.ranges import plural
from dpexp.record.noise import Noise
from dpexp.report import units


def noise_text(found: Noise) -> str:
    """The reason with its figures: how wide the times are spread, or which part outliers hold."""
    if found.is_wide:
        return (
            f"half of {plural(found.n, 'step')} lie in a range of {units.ms(found.iqr)}, "
            f"more than their median of {units.ms(found.median)}"
        )
    return (
        f"{found.outliers} of {plural(found.n, 'step')} hold {units.percent(found.share)} of the time, "
        f"the median is {units.ms(found.median)}"
    )
