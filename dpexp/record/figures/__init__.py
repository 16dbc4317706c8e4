"""Figures: the numbers that are computed from a Record. ``registry`` names them, and says where each stands.

The other files define them: ``step_times``, ``noise``, ``phase_times`` and ``work``; ``summary`` writes
those of a Record's summary. They take what they need of a Record; ``RecordView``
(``dpexp/record/view.py``) computes each once. The rest of ``record``, ``measurement``, ``report``,
``tracking`` and ``study`` import it; it imports ``record`` alone. Start reading in ``figure``, then in
``registry``.
"""
