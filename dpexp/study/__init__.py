"""Study: several runs that answer one question.

``experiment`` defines one, judges its claims and writes its page; ``sweep`` runs it; ``reproduce`` repeats a
recorded run. The commands and experiments/ import it; it may import every other room. Start reading in
``experiment/experiment.py``.
"""

MOST_REPEATS = 1_000
"""How often the same is run at most: by a command, and in an experiment."""
