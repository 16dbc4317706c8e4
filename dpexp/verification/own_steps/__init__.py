"""Own steps: a run's own trainer beside a single device in the run's type; nothing of the run changes.

Verification steps copies in float64. What acts in the run's type only, or begins later than the copies, is
found here. Start reading in ``sides.py``.
"""
