"""Runs: the folder of all runs.

``begin`` opens the journal of a run, ``index`` finds runs by name, ``run_summary`` and ``stored_record`` read
what a list shows of them, ``cache`` keeps what was read of runs that have not changed, ``check`` compares
each with its journal, also at its end, unless its files are ``clean_files``; both keep it in a
``signed_file``.
``import_journals`` takes those of other machines, and
``origin`` proves who made a Record. ``run``, ``engine``, ``study``, ``tracking``, ``report`` and the
commands import it; it imports ``config`` and the rest of ``record``. Start reading in ``index``.
"""
