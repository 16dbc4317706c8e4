"""Consistency: whether a Record contradicts itself, judged without running anything and without torch.

``contradictions`` has the list of all rules; each file has those of one part of a Record. ``reproduce``,
``report --check`` and ``runs.py check`` ask it, and docs/checks.md says what is left to whom. ``record.runs``
and ``study`` import it; it imports ``config`` and the rest of ``record``. Start reading in
``contradictions``.
"""
