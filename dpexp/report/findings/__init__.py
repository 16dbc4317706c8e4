"""Findings: short, true sentences computed from a Record, each with its figures and what to try.

``overheads`` (where the time of a step goes), ``imbalance`` (what is spread unevenly over devices and ranks),
``steadiness`` (steps that differ from the others) and ``reliability`` (how far the figures can be trusted)
hold rules; ``rules`` says what a rule is and finds them in these files, and in any other that is added;
``evidence`` holds what they read. The rest of ``report`` may
import this room; it imports ``record``, ``analysis`` and ``units``. Start reading in ``rules``.
"""
