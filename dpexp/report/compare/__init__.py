"""Compare: several runs in groups, ranked where that is fair, each difference with its interval.

``grouping`` decides which runs may be ranked against each other, ``tables`` and ``figures`` present them,
``files`` writes both. Scripts and ``study`` may import this package;
it imports the rest of ``report`` and ``record``. Start with ``grouping.py``.
"""
