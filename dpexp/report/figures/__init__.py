"""Figures: a Record drawn by matplotlib, layout and phases as PNG, and its steps as a Chrome trace.

``style`` and ``palette`` hold the look that every figure shares, those of ``compare`` and ``study`` too. The
rest of ``report`` and ``study`` import it; it may import the rest of ``report`` and ``record``. matplotlib is
imported by functions only. Start reading in ``phases``.
"""
