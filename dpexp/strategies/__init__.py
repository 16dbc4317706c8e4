"""Strategies: how a model is laid over devices, one file each; ``registry`` finds them by name.

The engine imports this package, and asks a strategy what it ``needs``, and the placed model what it has. It
imports parallel, distributed, data, timing, devices, config. Start reading in ``base`` and ``placed``, then
``replicas/whole``; ``wrappers``, ``submodules`` and ``tables`` are what most strategies use.
"""
