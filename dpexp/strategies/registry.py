"""The registry of strategies, by name."""

from dpexp.strategies.base import Strategy
from dpexp.strategies.custom import Custom
from dpexp.strategies.hybrid.hybrid import Hybrid
from dpexp.strategies.place import Place
from dpexp.strategies.ranks.ddp import Ddp
from dpexp.strategies.ranks.fsdp import Fsdp
from dpexp.strategies.replicas.block import Block
from dpexp.strategies.replicas.functional import Functional
from dpexp.strategies.replicas.whole import Whole
from dpexp.strategies.single import Single

STRATEGIES: dict[str, type[Strategy]] = {
    strategy.name: strategy
    for strategy in (Single, Whole, Block, Functional, Hybrid, Place, Ddp, Fsdp, Custom)
}
