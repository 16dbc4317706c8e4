"""Training: the loop around ``Placed.step``: optimizers and their state.

Start reading in ``trainer``, which takes the steps. ``optimizers`` makes and checks what ``--optimizer``
names (``registry``), and ``optimizer_state`` is what they keep. ``preserve`` leaves a module as it was.
``verification``, ``measurement`` and ``engine`` import this package; it imports ``strategies``.
"""
