"""Ranks: layouts of several processes, each with its rows of a batch.

``ddp`` all-reduces gradients, ``fsdp`` shards parameters too; ``shards`` says what a rank has of each
parameter. Imported by ``placed``, ``hybrid`` and ``custom``. Start reading in ``ddp``.
"""
