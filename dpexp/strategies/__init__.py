"""Strategies: how a model is laid over devices, one file each; ``STRATEGIES`` holds them by name.

The engine imports this package, and asks a strategy what it ``needs``. It imports parallel, distributed,
data, timing, devices and config. Start reading in ``base``, then ``whole``; ``wrappers`` and ``submodules``
are what most strategies use.
"""

from dpexp.strategies.base import GradientSync, Needs, Placed, Strategy
from dpexp.strategies.block import Block
from dpexp.strategies.custom import Custom
from dpexp.strategies.ddp import Ddp
from dpexp.strategies.fsdp import Fsdp
from dpexp.strategies.functional import Functional
from dpexp.strategies.hybrid import Hybrid
from dpexp.strategies.place import Place
from dpexp.strategies.single import Single
from dpexp.strategies.whole import Whole

STRATEGIES: dict[str, type[Strategy]] = {
    strategy.name: strategy
    for strategy in (Single, Whole, Block, Functional, Hybrid, Place, Ddp, Fsdp, Custom)
}

__all__ = ["STRATEGIES", "GradientSync", "Needs", "Placed", "Strategy"]
