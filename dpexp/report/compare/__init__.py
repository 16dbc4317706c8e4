"""Compare: several runs grouped, ranked where they may be, and each difference with its interval.

``grouping`` decides what may be compared, ``tables`` and ``figures`` show it, ``files`` write it.
"""
