"""Measurement: shapes, device map, memory, FLOPs and traffic of a placed model, and probes of the machine.

It knows no config of a run. ``engine`` imports it. Start reading in ``observe``.
"""
