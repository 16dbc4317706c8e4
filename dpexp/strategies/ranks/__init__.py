"""Ranks: layouts of several processes, each with its rows of a batch.

``ddp`` all-reduces gradients, ``fsdp`` shards parameters too. Imported by ``hybrid``, ``custom`` and the
registry. Start reading in ``ddp``.
"""
