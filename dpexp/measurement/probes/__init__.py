"""Probes: what the machine gives, and what a run has used of it. Each is an entry of a Record's ``work``.

    peak      products of square matrices on the run's device                   FLOP/s   peak.py
    memory    lookups of random rows, as wide as the run's, of a large table    bytes/s  bandwidth.py
    link      copies of a batch's vectors from pinned memory to the device      bytes/s  bandwidth.py
    energy    counters of processors and devices, before and after the steps    J        energy.py

``host_traffic`` has the bytes that a hybrid's step looks up and copies. ``engine`` imports this room, and
writes its rows to the journal; it imports ``strategies`` and what lies below. Start reading in ``probe``.
"""
