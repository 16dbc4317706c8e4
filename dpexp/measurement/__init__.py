"""Measurement: the times of steps and phases, what a step moves and uses, and the user's metrics.

``steps`` times steps, and takes some under torch's own profiler. ``collectives`` counts what ranks send.
``observe`` has shapes and the device map, ``step_profile`` the memory and FLOPs of one step. ``evaluation``
has loss and metrics of rows that are held out. It knows no config of a run. ``engine`` and ``run`` import it;
it imports ``training`` and what lies below. Start reading in ``steps``.
"""
