"""The registry of strategies' options, by name: every class in ``dpexp/config/strategies`` with an entry."""

import importlib
import pkgutil
from collections.abc import Iterator

from dpexp.config import strategies
from dpexp.config.strategy_options import StrategyOptions

REFERENCE = "single"
"""The strategy that the others are compared with: the model on one device."""


def _found() -> Iterator[type[StrategyOptions]]:
    for file in pkgutil.iter_modules(strategies.__path__, f"{strategies.__name__}."):
        for each in vars(importlib.import_module(file.name)).values():
            if isinstance(each, type) and "strategy" in vars(each):
                yield each


STRATEGY_OPTIONS: dict[str, type[StrategyOptions]] = {
    each.strategy.name: each for each in sorted(_found(), key=lambda each: each.strategy.order)
}
