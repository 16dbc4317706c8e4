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

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import torch
from torch import nn

from dpexp.config import ConfigError, did_you_mean
from dpexp.devices import label, move, place
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


class Transfer(nn.Module):
    """One device to another: same shapes. Gradients travel back the same way."""

    def __init__(self, device: torch.device, timer: Timer) -> None:
        super().__init__()
        self.device = device
        self.timer = timer
        place(self, device)

    def forward(self, *values: Any) -> Any:
        with self.timer.phase("transfer", self.device):
            moved = move(values, self.device)
        return moved[0] if len(moved) == 1 else moved

    def extra_repr(self) -> str:
        return f"to {label(self.device)}"


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


def matching(model: nn.Module, patterns: Sequence[str], option: str) -> tuple[str, ...]:
    """The submodules that the names and patterns mean, in order: ``layers.*`` means each child of layers.

    A list or dict of modules is not called itself: its name means each of the modules in it.
    Raises ConfigError for a pattern that matches nothing, and for modules that are named twice or lie
    inside one another.
    """
    known = [name for name, _ in model.named_modules() if name]
    names: list[str] = []
    for pattern in patterns:
        found = [name for name in known if _matches(name, pattern)] if _is_glob(pattern) else [pattern]
        if not found:
            raise ConfigError(f"{option} '{pattern}' matches no submodule; the model has {', '.join(known)}")
        names += found
    for name in names:
        submodule(model, name, option)
    check_no_overlap(names, option)
    return tuple(part for name in names for part in _called(model.get_submodule(name), name))


def _called(module: nn.Module, name: str) -> Iterator[str]:
    """The name, or the names of what a list or dict of modules holds."""
    if not is_uncalled(module):
        yield name
        return
    for key, child in module.named_children():
        yield from _called(child, f"{name}.{key}")


def _is_glob(pattern: str) -> bool:
    return any(sign in pattern for sign in "*?[")


def _matches(name: str, pattern: str) -> bool:
    """Whether the pattern matches, part by part: ``*`` does not reach over a dot."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))


def check_no_overlap(names: Sequence[str], option: str) -> None:
    """ConfigError where a name is given twice or lies inside another."""
    for index, name in enumerate(names):
        for other in names[:index]:
            if name == other:
                raise ConfigError(f"{option} '{name}' is given twice")
            inner, outer = (name, other) if name.startswith(other + ".") else (other, name)
            if inner.startswith(outer + "."):
                raise ConfigError(f"{option} '{inner}' lies inside {option} '{outer}': name one of the two")


def rewire(
    module: nn.Module,
    named: Collection[str],
    change: Callable[[str, nn.Module], nn.Module],
    own: Callable[[nn.Module], None],
    prefix: str = "",
    _changed: dict[int, tuple[nn.Module, nn.Module]] | None = None,
) -> None:
    """Put ``change(name, child)`` in the place of every named submodule and of the largest others.

    A module that holds a named one, and a list or dict of modules, which are not called themselves, keep
    their place; ``own`` gets these, for what they own beside their children. A module of several names is
    changed once.
    """
    _changed = {} if _changed is None else _changed
    own(module)
    for key, child in list(module._modules.items()):
        if child is None:
            continue
        name = f"{prefix}{key}"
        holds = any(each.startswith(f"{name}.") for each in named)
        if name not in named and (holds or is_uncalled(child)):
            rewire(child, named, change, own, f"{name}.", _changed)
            continue
        if id(child) not in _changed:
            _changed[id(child)] = (child, change(name, child))
        replace(module, key, _changed[id(child)][1])


def is_uncalled(module: nn.Module) -> bool:
    """Whether it is a list or dict of modules, which only holds others and has no forward."""
    return isinstance(module, nn.ModuleList | nn.ModuleDict) and type(module).forward is nn.Module.forward


def check_not_tied(model: nn.Module, names: Collection[str], option: str) -> None:
    """ConfigError where a named module shares a parameter with one that is not named."""
    owners: dict[int, tuple[bool, str]] = {}
    for name, part in model.named_modules():
        inside = any(name == each or name.startswith(f"{each}.") for each in names)
        for key, parameter in part.named_parameters(recurse=False):
            first_inside, first = owners.setdefault(id(parameter), (inside, f"{name}.{key}".lstrip(".")))
            if first_inside != inside:
                raise ConfigError(
                    f"{option}: '{first}' and '{name}.{key}' are one tied parameter, and a parameter has one "
                    "device: name the modules of both, or of none"
                )


def place_own(module: nn.Module, device: torch.device) -> None:
    """Place the parameters and buffers that the module itself owns, not its children's."""
    children, module._modules = module._modules, {}
    try:
        place(module, device)
    finally:
        module._modules = children


def replace(parent: nn.Module, key: str, module: nn.Module) -> None:
    """Put ``module`` where ``parent.key`` is; works for Sequential and ModuleList, whose keys are numbers."""
    parent._modules[key] = module
