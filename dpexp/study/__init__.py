"""Study: several runs that answer one question.

``experiment`` is a folder that asks it. ``sweep`` runs its cells, each in a ``child_run``; ``records`` are
their Records by cell and round. ``metrics`` are figures of these, by which claims are judged; ``results``
and ``figure`` write what they show. ``reproduce`` runs a recorded run again. Start reading in ``experiment``.
"""
