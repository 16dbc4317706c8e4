"""Figures: a Record drawn: layout, phases and timeline as PNG, and a Chrome trace.

``style`` and ``palette`` hold the look that every figure shares, those of ``compare`` and ``study`` too, and
do not import matplotlib; ``layout``, ``phases`` and ``timeline`` do. The rest of ``report`` and ``study``
import it; it may import the rest of ``report`` and ``record``. Start reading in ``timeline``.
"""
