"""Measurement: the times of steps and phases, what a step moves and uses, the user's metrics, and probes.

``steps`` times steps, ``phases`` their phases, and ``collectives`` counts what ranks send; ``observe`` has
shapes and the device map, ``step_profile`` memory and FLOPs, with the storages that ``live_storages``
follows and the formulas of ``flops``; ``operators`` has those of steps under ``torch.profiler``,
``evaluation`` loss and metrics of rows that are held out, and ``probes`` measures the machine. It knows no
config of a run. ``engine`` and ``run`` import it; it imports ``training`` and what lies below. Start reading
in ``steps``.
"""
