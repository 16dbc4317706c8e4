"""Tolerances: how large a relative error may be that counts as rounding, by the type of the comparison."""

USUAL = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 2.0**-7}
"""Those of ``dpexp.verification``, which needs torch; a test compares them. A run may measure what rounding
does, and says so in a note."""
SHORT = 2.0**-5
"""Of the run's own steps in types of fewer bits than float32, which products on GPUs may have too."""
MOST = 0.1
"""The largest limit: where rounding would hide larger errors, nothing is compared."""
