"""Figures: a Record drawn: layout, phases and timeline as PNG, and a Chrome trace.

``files`` writes them all; ``style`` and ``palette`` hold the look that every figure shares, those of
``report.compare`` and ``study`` too. Start with ``timeline``.
Imported by ``report`` and ``study``; may import the rest of ``report`` and ``record``.
matplotlib is imported when a figure is drawn.
"""
