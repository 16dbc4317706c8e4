"""Wrappers, and the names that modules have without them.

A strategy puts wrappers into a model: ``DataParallel`` around ``block2``, a phase around the forward.
Users name modules as the model's author did, so that Records do too: a wrapper and what it wraps
share one name.

    Forward                      ""            (wrapper)
      module: Blocks             ""
        block1: Linear           "block1"
        block2: DataParallel     "block2"      (wrapper)
          module: Linear         "block2"
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import nn

from dpexp.config import ConfigError, did_you_mean
from dpexp.timing import Timer


class Wrapper(nn.Module):
    """A module around ``self.module`` that computes the same thing.

    ``places`` are the devices that the wrapped module is replicated to; empty: it runs where it is.
    Attributes that the wrapper lacks are the wrapped module's, so that a model may go on reading
    ``self.block2.weight``.
    """

    module: nn.Module
    places: tuple[torch.device, ...] = ()
    transparent: ClassVar[bool] = False
    """True where inputs and outputs are the wrapped module's own, so that they are observed once."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            wrapped = self.__dict__.get("_modules", {}).get("module")
            if wrapped is None:
                raise
            return getattr(wrapped, name)


class Forward(Wrapper):
    """Times the module's call as one phase, ``forward`` unless it is named."""

    transparent = True

    def __init__(self, module: nn.Module, timer: Timer, phase: str = "forward") -> None:
        super().__init__()
        self.module = module
        self.timer = timer
        self.phase = phase

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        with self.timer.phase(self.phase):
            return self.module(*inputs, **kwargs)


@dataclass(frozen=True)
class Part:
    """One module of a placed model: its name in the model as written, and the wrappers around it."""

    name: str
    module: nn.Module
    wrappers: tuple[Wrapper, ...]

    @property
    def places(self) -> tuple[torch.device, ...]:
        """The devices that this part is replicated to, the first of them its home; empty if it is not."""
        return next((wrapper.places for wrapper in reversed(self.wrappers) if wrapper.places), ())


def parts(module: nn.Module, name: str = "", wrappers: tuple[Wrapper, ...] = ()) -> Iterator[Part]:
    """Every module of a placed model, wrappers included, outermost first; a shared module once a name."""
    yield Part(name, module, wrappers)
    inside = (*wrappers, module) if isinstance(module, Wrapper) else wrappers
    for key, child in module.named_children():
        transparent = isinstance(module, Wrapper) and key == "module"
        yield from parts(child, name if transparent else f"{name}.{key}".lstrip("."), inside)


def named_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a placed model by their names in the model as written; a shared one once."""
    seen: dict[int, str] = {}
    found = {}
    for part in parts(module):
        for key, parameter in part.module.named_parameters(recurse=False):
            if seen.setdefault(id(parameter), part.name) == part.name:
                found[f"{part.name}.{key}".lstrip(".")] = parameter
    return found


def submodule(model: nn.Module, name: str, option: str) -> tuple[nn.Module, str, nn.Module]:
    """(parent, key, module) of a named submodule. ConfigError if it is not there or is no module."""
    known = [each for each, _ in model.named_modules() if each]
    if name not in known:
        tensors = dict(model.named_parameters()) | dict(model.named_buffers())
        if name in tensors:
            owner = name.rpartition(".")[0]
            mend = f"name its module '{owner}'" if owner else "it belongs to the model itself"
            raise ConfigError(f"{option} '{name}': that is a parameter, not a module; {mend}")
        top = [each for each in known if "." not in each]
        raise ConfigError(
            f"{option} '{name}' not found; the model has {', '.join(top) or 'no submodules'}"
            f"{did_you_mean(name, known)}"
        )
    owner, _, key = name.rpartition(".")
    return model.get_submodule(owner), key, model.get_submodule(name)


def check_no_overlap(names: tuple[str, ...], option: str) -> None:
    """ConfigError where a name is given twice or lies inside another."""
    for index, name in enumerate(names):
        for other in names[:index]:
            if name == other:
                raise ConfigError(f"{option} '{name}' is given twice")
            inner, outer = (name, other) if name.startswith(other + ".") else (other, name)
            if inner.startswith(outer + "."):
                raise ConfigError(f"{option} '{inner}' lies inside {option} '{outer}': name one of the two")


def replace(parent: nn.Module, key: str, module: nn.Module) -> None:
    """Put ``module`` where ``parent.key`` is; works for Sequential and ModuleList, whose keys are numbers."""
    cast("dict[str, nn.Module | None]", parent._modules)[key] = module
