"""Journal: the file of a run on disk: append, read, fold.

``reader`` skips lines that cannot be read, ``fold`` makes the Record. Every package above ``record`` may
import it; it imports ``config`` and ``record``. Start reading in ``journal``.
"""
