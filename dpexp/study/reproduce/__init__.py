"""Reproduce: a run again from its Record, and whether it is the same.

``reproduce`` runs it, in the commit that ``worktree`` checks out where asked, and ``reproduction`` compares
the two Records by ``comparisons``; ``named_files`` keeps code that a Record from elsewhere names from being
run. The commands and ``sweep`` import it; it may import ``sweep``, ``experiment`` and the rooms
below. Start reading in ``reproduce``.
"""
