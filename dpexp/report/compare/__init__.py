"""Compare: several runs in groups, ranked where that is fair, each difference with its interval.

``grouping`` decides by ``group_key`` which runs may be ranked against each other; ``tables``, ``figures`` and
``rows`` present them, ``files`` writes them, and ``history`` shows all runs as comparisons. The commands and
``study`` may import this room; it imports the rest of ``report``, ``record`` and ``config``. Start reading in
``grouping``.
"""
