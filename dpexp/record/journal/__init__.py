"""Journal: the file of a run on disk: append, read, fold, seal, keep durable.

``reader`` finds lines that are damaged or lost, ``fold`` makes the Record, ``seal`` binds a file to the state
of the journal that it derives from, ``kept`` has what a damaged journal lost, ``durable`` writes files that
survive a crash, ``leftovers`` removes what killed processes left. Every room above ``record`` may import it;
it imports ``config`` and ``record``. Start reading in ``journal``.
"""
