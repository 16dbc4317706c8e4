"""Verification: the same step in a layout and on a single device, side by side.

``equivalence`` verifies a model of a run, ``prove`` that of a user's script; ``side_by_side`` takes the steps
and ``compare`` has their errors; ``diagnosis`` says where they differ. It knows no config of a run.
``engine`` and the public ``prove`` import it; it imports ``training`` and what lies below. Start reading in
``equivalence``.
"""
