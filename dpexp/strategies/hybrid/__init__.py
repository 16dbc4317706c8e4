"""Hybrid: embedding tables on the host, the rest on accelerators.

``hybrid`` is the layout. Tables: ``embedding_tables``, ``mapped_tables`` (in files), ``table_shards`` and
``sharded_embedding`` (over ranks). Look-ahead: ``lookups``, ``look_ahead``, ``exchanged_lookups`` and
``sharded_look_ahead``. Start reading in ``hybrid``.
"""
