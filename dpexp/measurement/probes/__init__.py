"""Probes: what the machine gives, and what a run has used of it. Each is an entry of a Record's ``work``.

    peak      products of square matrices on the run's device                   FLOP/s   peak.py
    energy    counters of processors and devices, before and after the steps    J        energy.py

They draw no random numbers of others, and what cannot be measured is left out. ``engine`` imports this room,
and writes its rows to the journal.
"""
