"""Training: the loop around ``Placed.step``: optimizers, their state, snapshots.

``trainer`` takes the steps; the ``optimizer_…`` files choose, check and make an optimizer, ``optimizers``
joins those of a placed model, ``snapshots`` writes the state from which a run resumes, and ``evaluation`` has
the figures of rows that are not trained on. It knows no config. ``verification``, ``measurement`` and
``engine`` import it; it imports ``strategies`` and what lies below. Start reading in ``trainer``.
"""
