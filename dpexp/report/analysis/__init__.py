"""Analysis: answers to one question each, computed from one Record.

``phases`` (a step's phases and their shares), ``shapes`` (how batches are split), ``layout`` (what lies on
which device), ``communication`` (what a step moves between devices), ``timeline`` (phase-timed steps as lanes
of bars), ``statistics`` (bootstrap intervals).
The rest of ``report``, ``tracking`` and ``study`` may import it; it imports ``record`` and ``report.units``.
Start with ``phases.py``.
"""
