"""Verification: the same step in a layout and on a single device, side by side.

It knows no config of a run. ``engine`` and ``dpexp.prove`` import it. Start reading in ``equivalence``.
"""
