"""The registry of strategies, by name: the classes that their options name."""

import importlib
from collections.abc import Iterator, Mapping

from dpexp.config.strategy_options import STRATEGY_OPTIONS
from dpexp.strategies.base import Strategy


class _Layouts(Mapping[str, type[Strategy]]):
    """Imports a layout when it is asked for."""

    def __getitem__(self, name: str) -> type[Strategy]:
        module, _, layout = STRATEGY_OPTIONS[name].made_by.partition(":")
        found: type[Strategy] = getattr(importlib.import_module(module), layout)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(STRATEGY_OPTIONS)

    def __len__(self) -> int:
        return len(STRATEGY_OPTIONS)


STRATEGIES: Mapping[str, type[Strategy]] = _Layouts()
