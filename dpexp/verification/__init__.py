"""Verification: a step of a layout, and the same step of a single device from the layout's own state.

``take`` is one such step; ``proof`` takes steps of copies, ``own_steps`` those of a run; ``compare`` has the
errors, ``diagnosis`` says where they begin. It knows no config of a run. ``engine`` and the public ``prove``
import it; it imports ``training`` and what lies below. Start reading in ``take``.
"""
