"""Hybrid: embedding tables on the host, the rest on accelerators.

``hybrid`` is the layout, and draws who calls whom; ``embedding_tables`` and ``sharded_embedding`` have the
tables over ranks. Start reading in ``hybrid``.
"""
