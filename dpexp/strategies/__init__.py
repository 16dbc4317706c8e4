"""Strategies: how a model is laid over devices, one file each; ``STRATEGIES`` holds them by name.

The engine imports this package, and asks a strategy what it ``needs``. It imports parallel, distributed,
data, timing, devices and config. Start reading in ``base``, then ``whole``; ``wrappers`` and ``submodules``
are what most strategies use.
"""
