"""Engine: one run, from its configuration to its journal.

``prepare`` turns a config into a ``Prepared`` run, of plain values; ``run_globals`` has what a run sets in
its process. ``passes`` takes it from its verification (``verify``) to its last pass. ``prediction`` lays it
out without data, for a dry run and before a run. ``facts``, ``torch_facts`` and ``references`` have what a
Record says of machine, code and files. Every pass takes the step of ``dpexp/strategies/placed.py``.
``run``, ``study`` and the commands import it; it imports everything below, never ``tracking`` or ``report``.
Start reading in ``passes``.
"""
