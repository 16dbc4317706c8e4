"""Tolerances: how large a relative error may be that counts as rounding, by the type of the comparison."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """``usual`` holds unless a run measured what rounding does, and says so in a note.

    ``most`` is the largest at all: wrong semantics make larger errors.
    """

    usual: float
    most: float


TOLERANCES = {
    "float64": Tolerance(1e-12, 1e-4),
    "float32": Tolerance(1e-5, 1e-3),
    "bfloat16": Tolerance(2.0**-7, 0.1),
}
"""Those of ``dpexp.verification``, which needs torch; a test compares them."""
SHORT = Tolerance(2.0**-5, 0.1)
"""Of the run's own steps in types of fewer bits than float32, which products on GPUs may have too."""
