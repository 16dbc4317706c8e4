"""Training: the loop around ``Placed.step``: optimizers, their state, snapshots.

It knows no config. ``verification``, ``measurement`` and ``engine`` import it. Start reading in ``trainer``.
"""
