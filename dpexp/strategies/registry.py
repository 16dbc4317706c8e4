"""The registry of strategies, by the names of their options."""

from collections.abc import Mapping

from dpexp.strategies.base import Strategy
from dpexp.strategies.custom import Custom
from dpexp.strategies.hybrid import Hybrid
from dpexp.strategies.place import Place
from dpexp.strategies.ranks import Ddp, Fsdp
from dpexp.strategies.replicas import Block, Functional, Whole
from dpexp.strategies.single import Single

STRATEGIES: Mapping[str, type[Strategy]] = {
    "single": Single,
    "whole": Whole,
    "block": Block,
    "functional": Functional,
    "hybrid": Hybrid,
    "place": Place,
    "ddp": Ddp,
    "fsdp": Fsdp,
    "custom": Custom,
}
