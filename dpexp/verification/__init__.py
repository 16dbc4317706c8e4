"""Verification: a step of a layout, and the same step of a single device from the layout's own state.

``take`` is one such step; a ``proof`` is a list of them on copies, ``own_steps`` are those of a run;
``compare`` has their errors, ``diagnosis`` says where they begin. It knows no config of a run. ``engine`` and
the public ``prove`` import it; it imports ``training`` and what lies below. Start reading in ``take``.
"""
