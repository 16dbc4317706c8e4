"""Strategies: how a model is laid out across devices, one file each; ``registry`` finds them by name.

Layouts: ``single``, ``place`` and ``custom`` here, others in ``replicas``, ``ranks`` and ``hybrid``;
``modules`` has what they do to modules. A placed model, ``placed``, has its step, and with it
``gradient_sync`` and ``shards``.

The engine imports this package, and asks a strategy what it ``needs``, and the placed model what it has. It
imports parallel, distributed, data, timing, devices, record and config. Start reading in ``placed`` and
``base``, then ``replicas/whole``.
"""
