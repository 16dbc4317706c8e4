"""Figures: the numbers that are computed from a Record. ``registry`` names them, and says where each stands.

The other files define them: ``step_times``, ``phase_times``, ``stages``, ``work``. They take what they need
of a Record; ``RecordView`` (``dpexp/record/view.py``) brings both together, and computes each figure once.
"""
