"""Tolerances: how large a relative error may be that counts as rounding, by the type of the comparison."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """``usual`` holds unless a run measured what rounding does; None where each run measures. ``most`` is the
    largest that it may measure: wrong semantics make larger errors."""

    usual: float | None
    most: float


TOLERANCES = {
    "float64": Tolerance(1e-12, 1e-4),
    "float32": Tolerance(1e-5, 1e-3),
    "bfloat16": Tolerance(None, 0.1),
}
"""Those of ``dpexp.verification``, which needs torch; a test compares them."""
