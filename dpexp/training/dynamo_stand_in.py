"""A stand-in for ``torch._dynamo``, whose import takes two thirds of the time of importing torch.

PyTorch's optimizers and dispatch modes import it to tell ``torch.compile`` where a graph ends
(``graph_break``) and what it must not trace (``disable``). Outside of compiled code both do nothing, and so
does the stand-in, which takes the module's place while these run. Asked for anything else, it imports the
real module.
"""

import contextlib
import functools
import importlib
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch

NAME = "torch._dynamo"


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        _withdraw()
        return getattr(importlib.import_module(NAME), name)

    @staticmethod
    def graph_break(*args: Any, **options: Any) -> None:
        """Nothing: no graph is made."""

    @staticmethod
    def disable(function: Any = None, *args: Any, **options: Any) -> Any:
        """The function; the real module's, once that is imported, since PyTorch keeps what this returns.

        Used otherwise (``@disable()``, or on a module or a class), it is the real one.
        """
        if not isinstance(function, FunctionType):
            return _StandIn.__getattr__(_STAND_IN, "disable")(function, *args, **options)

        @functools.wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            real = sys.modules.get(NAME, _STAND_IN)
            called = function if real is _STAND_IN else real.disable(function, *args, **options)
            return called(*given, **named)

        return call


_STAND_IN = _StandIn(NAME)


@contextlib.contextmanager
def without_dynamo() -> Iterator[None]:
    """Nothing in this block imports ``torch._dynamo`` for ``graph_break`` and ``disable`` alone."""
    if NAME in sys.modules:
        yield
        return
    sys.modules[NAME], torch.__dict__["_dynamo"] = _STAND_IN, _STAND_IN
    try:
        yield
    finally:
        _withdraw()


def _withdraw() -> None:
    """Take the stand-in away, where it still is."""
    for modules, name in ((sys.modules, NAME), (torch.__dict__, "_dynamo")):
        if modules.get(name) is _STAND_IN:
            del modules[name]
