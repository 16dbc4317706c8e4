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


def _by_name() -> dict[str, type[StrategyOptions]]:
    found: dict[str, type[StrategyOptions]] = {}
    for each in sorted(_found(), key=lambda each: each.strategy.order):
        other = found.setdefault(each.strategy.name, each)
        if other is not each:
            raise TypeError(f"{other.__module__} and {each.__module__} are both named {each.strategy.name}")
    return found


STRATEGY_OPTIONS: dict[str, type[StrategyOptions]] = _by_name()
