"""Journal: the file of a run on disk: append, read, fold, seal, keep durable.

``durable`` writes files that survive a crash. Start reading in ``journal``.
"""
