"""Runs: the folder of all runs.

``begin`` opens the journal of a run, ``index`` finds runs by name, ``run_summary`` has what a list shows of
them, and ``import_journals`` takes those of other machines. ``run``, ``engine``, ``study``, ``tracking``,
``report`` and the commands import it; it imports ``config`` and the rest of ``record``. Start reading in
``index``.
"""
