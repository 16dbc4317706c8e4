"""Random draws: which modules draw random numbers in their own forward, beside their submodules.

Block.forward:  attention(x)  |  dropout(x)         <- the state of the generator changes in Block itself
                enter, leave  |  no module is entered
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from dpexp.data.rng import seed_globals


@dataclass
class Seeds:
    """Sets the random state for each chunk of rows of a step; ``step`` counts from 1."""

    step: int = 0

    def __call__(self, chunk: int) -> None:
        seed_globals((self.step << 16) + chunk)


WHOLE_MODEL = "*"
"""Among names of modules: the model with every module in it."""


@dataclass
class Draws:
    """``names`` are those of the modules that drew; ``any`` is True for draws outside of modules, too."""

    names: set[str] = field(default_factory=set)
    any: bool = False


@contextmanager
def drawing_modules(model: nn.Module) -> Iterator[Draws]:
    """The modules that draw from the host's generator, complete when the context ends."""
    draws, inside, latest = Draws(), list[str](), [torch.get_rng_state()]

    def look() -> None:
        state = torch.get_rng_state()
        if not torch.equal(state, latest[0]):
            draws.any, latest[0] = True, state
            draws.names.update(inside[-1:])

    def enter(name: str, module: nn.Module, args: Any) -> None:
        look()
        inside.append(name)

    def leave(module: nn.Module, args: Any, outputs: Any) -> None:
        look()
        inside.pop()

    handles = list[RemovableHandle]()
    try:
        for name, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(partial(enter, name)))
            handles.append(module.register_forward_hook(leave))
        yield draws
        look()
    finally:
        for handle in handles:
            handle.remove()


def more_quiet(quiet: frozenset[str], drawing: set[str]) -> frozenset[str]:
    """The modules to put into eval mode, given those that were in it and those that drew nevertheless.

    A module may read ``training`` of the one around it: this is the next to be quiet, up to the model.
    """
    found = set(quiet)
    for name in drawing:
        while name in found and name:
            name = name.rpartition(".")[0]
        found.add(name)
    return frozenset(found) if found != quiet else quiet | {WHOLE_MODEL}
