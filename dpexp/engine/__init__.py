"""Engine: one run, from its configuration to its journal.

``prepare`` checks everything that can refuse a run; ``loop`` runs it: verify, observe, warm up, time steps,
time phases. ``trainer`` has the step. ``dry_run``, ``predict`` and ``inventory`` describe a run without one.
Imported by ``run``, ``study`` and the scripts; imports everything below, and knows nothing of MLflow.
"""
