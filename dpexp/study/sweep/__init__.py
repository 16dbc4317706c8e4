"""Sweep: the runs of an experiment, one after the other on this machine.

``sweep`` runs each cell in a ``child_run``, in rounds; ``parent`` is the run that they belong to. ``grid``
makes an experiment of a command line. The commands and ``reproduce`` import it; it imports ``experiment``,
``reproduce`` and the rooms below. Start reading in ``sweep``.
"""
