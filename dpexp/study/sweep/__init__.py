"""Sweep: the runs of an experiment one after the other, here or on Slurm.

``sweep`` makes the runs in a balanced ``order``, under the ``cells_lock``: ``cell_run`` runs a cell in a
``child_run`` and keeps its Record, ``program`` reads one that is not a run of dpexp; ``sweep_journal`` is the
parent of their journals. ``grid`` makes an experiment of a command line; ``jobs`` gives rounds to Slurm by
``slurm_executor``. The commands, ``reproduce`` and some programs of experiments/ import it; it imports
``experiment``, ``reproduce`` and the rooms below. Start reading in ``sweep``.
"""
