"""Hybrid: embedding tables on the host, the rest on accelerators.

``hybrid`` is the layout, and draws who calls whom. Tables: ``embedding_tables``, ``mapped_tables`` (in
files), ``table_shards`` and ``sharded_embedding`` (over ranks). Look-ahead: ``host_calls``, ``lookups``,
``look_ahead``, and over ranks ``exchanged_lookups`` and ``sharded_look_ahead``. Start reading in ``hybrid``.
"""
