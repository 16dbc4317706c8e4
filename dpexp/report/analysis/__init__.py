"""Analysis: answers to one question each, computed from one Record.

``phases`` (a step's phases as text), ``shapes`` (how batches are split), ``layout`` (what lies on which
device), ``noise`` (why a run cannot be judged), ``timeline`` (phase-timed steps as lanes of bars), ``work``
(memory and FLOPs), ``trends`` (whether steps get slower), ``intervals`` (a figure of several runs, and how
certain it is, by ``estimates`` and ``power``). The rest of ``report``, ``tracking`` and ``study``
may import it; it imports ``config``, ``record`` and ``report.units``. Start reading in ``phases``.
"""
