"""Training: the loop around ``Placed.step``: optimizers and their state.

``trainer`` takes the steps; the ``optimizer_…`` files choose, check and make an optimizer, ``optimizers``
joins those of a placed model. It knows no config. ``verification``, ``measurement`` and ``engine`` import it;
it imports ``strategies`` and what lies below. Start reading in ``trainer``.
"""
