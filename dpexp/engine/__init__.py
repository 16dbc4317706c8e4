"""Engine: one run, from its configuration to its journal.

Start in ``loop.execute``, the order of the passes: verify, observe, warm up, time steps, time phases. A
measured step is ``Measurement._time`` and ``Trainer.step``. ``prepare`` builds and checks the run before;
``dry_run`` and ``inventory`` describe it without running it.
Imported by ``run``, ``study`` and the scripts. Imports everything below, never ``tracking`` or ``report``.
"""
