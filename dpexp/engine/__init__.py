"""Engine: one run, from its configuration to its journal.

``prepare`` builds and checks the run. ``loop`` has the order of the passes: ``verify``, observe, and those of
``measure``. ``dry_run`` describes a run without it; ``facts`` has what a Record says of machine, code and
config. Every pass takes the step of ``dpexp/strategies/placed.py``. ``run``, ``study`` and the commands
import it; it imports everything below, never ``tracking`` or ``report``. Start reading in ``loop``.
"""
