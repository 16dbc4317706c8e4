"""Study: several runs that answer one question.

``experiment`` defines one, ``sweep`` runs it, ``claims`` judges what it predicted, ``readme`` and ``figure``
write its page, ``reproduce`` repeats a recorded run. Start with ``experiment``.
Imported by the scripts; may import every other room.
"""
