"""Study: several runs that answer one question.

``experiment`` defines one, judges its claims and writes its page; ``sweep`` runs it; ``reproduce`` repeats a
recorded run. Start with ``experiment/experiment.py``. Imported by the commands; may import every other room.
"""
