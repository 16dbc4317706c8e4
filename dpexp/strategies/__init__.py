"""Strategies: how a model is laid out across devices, a file for each family.

``single``, ``replicas`` (whole, block, functional), ``hybrid``, ``place``, ``ranks`` (ddp, fsdp) and
``custom`` lay a model out; ``registry`` finds them by name. ``placed`` is what they make of it, with its
step; ``base`` is what they have in common, and ``modules`` what they do to modules. Start reading in
``placed``, then ``replicas``; for ranks in ``naive``, a step over ranks of a few lines.
"""
