"""Study: several runs that answer one question.

``experiment`` is a folder that asks it; ``records`` are its Records as files, of which ``metrics`` takes the
figures that ``claims`` are judged by; ``readme`` and ``figure`` (of one of the ``figure_kinds``) write its
page. ``sweep`` runs its cells, each in a ``child_run``; ``grid`` makes an experiment of a command line.
``reproduce`` runs a recorded run again, and ``reproduction`` compares the two. Start reading in
``experiment``.
"""
