"""The registry of strategies' options, by name."""

from dpexp.config.strategy_options import (
    BlockOptions,
    CustomOptions,
    DdpOptions,
    FsdpOptions,
    FunctionalOptions,
    HybridOptions,
    PlaceOptions,
    SingleOptions,
    StrategyOptions,
    WholeOptions,
)

REFERENCE = "single"
"""The strategy that the others are compared with: the model on one device."""

_OPTIONS: list[type[StrategyOptions]] = [
    SingleOptions,
    WholeOptions,
    BlockOptions,
    FunctionalOptions,
    HybridOptions,
    PlaceOptions,
    DdpOptions,
    FsdpOptions,
    CustomOptions,
]

STRATEGY_OPTIONS: dict[str, type[StrategyOptions]] = {each.strategy.name: each for each in _OPTIONS}
