"""Figures: a Record drawn: layout, phases and timeline as PNG, and a Chrome trace.

``style`` and ``palette`` hold the look that every figure shares, those of ``compare`` and ``study`` too, and
do not import matplotlib; ``layout``, ``phases`` and ``timeline`` do. Start with ``timeline``.
Imported by ``report`` and ``study``; may import the rest of ``report`` and ``record``.
"""
