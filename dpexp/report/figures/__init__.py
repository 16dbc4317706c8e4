"""Figures: a Record drawn: layout, phases and timeline as PNG, and a Chrome trace.

``picture`` draws them by Pillow: shapes at places in pixels; ``chart`` has the rows and the axis of two of
them, ``fonts`` measures texts. ``style`` and ``palette`` hold the look that every figure shares, those of
``compare`` and ``study`` too, which matplotlib draws. The rest of ``report`` and ``study`` import it; it may
import the rest of ``report`` and ``record``. Start reading in ``timeline``.
"""
