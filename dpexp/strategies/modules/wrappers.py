"""Wrappers, and the names that modules have without them.

A strategy puts wrappers into a model, as ``DataParallel`` around ``block2``.
Users, and so Records, name modules as the model was written: a wrapper and what it wraps share one name.

    Blocks                     ""
      block1: Linear           "block1"
      block2: DataParallel     "block2"      (wrapper)
        module: Linear         "block2"
"""

from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from dpexp.devices import HOST, is_virtual, label, move, place, tensor_device
from dpexp.parallel.data_parallel import DataParallel
from dpexp.tensors import walk
from dpexp.timing import Timer


class Wrapper(nn.Module):
    """A module around ``self.module`` that computes the same thing.

    ``replica_devices`` are the devices that it replicates the module to; empty if it makes no replicas.
    An attribute that the wrapper lacks is the wrapped module's: a model may read ``self.block2.weight``.
    """

    module: nn.Module
    replica_devices: tuple[torch.device, ...] = ()
    pieces: int = 1  # of a batch that it computes apart, where it makes no replicas
    transparent: ClassVar[bool] = False  # True: its inputs and outputs are the module's, observed once

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            wrapped = self.__dict__.get("_modules", {}).get("module")
            if wrapped is None:
                raise
            return getattr(wrapped, name)


class Transfer(nn.Module):
    """Moves tensors to a device, as the phase ``transfer``; gradients return the same way.

    Tensors without a mark are on ``unmarked``, if that is virtual, and else on the host.
    """

    def __init__(self, device: torch.device, timer: Timer, unmarked: torch.device = HOST) -> None:
        super().__init__()
        self.device = device
        self.timer = timer
        self.unmarked = unmarked if is_virtual(unmarked) else HOST
        place(self, device)

    def forward(self, *values: Any) -> Any:
        with self.timer.phase("transfer", self.device):
            moved = move(values, self.device)
        return moved[0] if len(moved) == 1 else moved

    def moved(self, values: Any) -> dict[str, dict[str, int]]:
        """Bytes that a call moves from each device, and those of them that get a gradient, where known."""
        found: dict[str, dict[str, int]] = {"moved": {}}
        if torch.is_grad_enabled():
            found["moved_back"] = {}
        for tensor in walk(values):
            source = label(tensor_device(tensor, self.unmarked))
            for key in found if source != label(self.device) else ():
                if key == "moved" or tensor.requires_grad:
                    size = tensor.numel() * tensor.element_size()
                    found[key][source] = found[key].get(source, 0) + size
        return found


class Part(NamedTuple):
    """One module of a placed model: its name in the model as written, and the wrappers around it."""

    name: str
    module: nn.Module
    wrappers: tuple[Wrapper, ...]

    @property
    def replica_devices(self) -> tuple[torch.device, ...]:
        """The devices that the module is replicated to, the original's first; empty if it is not."""
        return next((each.replica_devices for each in reversed(self.wrappers) if each.replica_devices), ())

    @property
    def pieces(self) -> int:
        """Into how many pieces the wrappers split a batch that they give to the module."""
        return prod(max(len(each.replica_devices), each.pieces) for each in self.wrappers)


def wrapped_key(module: nn.Module) -> str:
    """The name of the child that a wrapper wraps, one of dpexp's or of PyTorch's; empty for other modules."""
    return _wrapped_key(type(module))  # type: ignore[arg-type]


@lru_cache(maxsize=256)  # a model has thousands of modules, and few classes of them
def _wrapped_key(kind: type[nn.Module]) -> str:
    if issubclass(kind, Wrapper | DataParallel | nn.DataParallel | nn.parallel.DistributedDataParallel):
        return "module"
    names = [cls.__name__ for cls in kind.__mro__]  # classes that take long to import
    return (
        "_orig_mod" if "OptimizedModule" in names else _CHECKPOINTED if "ActivationWrapper" in names else ""
    )


_CHECKPOINTED = "_checkpoint_wrapped_module"


def is_transparent(module: nn.Module) -> bool:
    """Whether its inputs and outputs are those of the module that it wraps, which makes no replicas."""
    if isinstance(module, Wrapper):
        return module.transparent
    return bool(wrapped_key(module)) and not isinstance(module, DataParallel | nn.DataParallel)


def parts(module: nn.Module, name: str = "", wrappers: tuple[Wrapper, ...] = ()) -> Iterator[Part]:
    """Every module of a placed model, wrappers included, outermost first; a shared module under each name."""
    left = [Part(name, module, wrappers)]
    while left:
        part = left.pop()
        yield part
        name, module, around = part
        if not module._modules:
            continue
        if isinstance(module, Wrapper):
            around = (*around, module)
        left += reversed([Part(inside, child, around) for inside, child in _children(name, module)])


def _children(name: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    """(name, module) of what is in a module of this name, each once; what a wrapper wraps has its name."""
    inner, found = wrapped_key(module), dict[nn.Module, str]()
    for key, child in module._modules.items():
        if child is not None and child not in found:
            found[child] = name if inner and key == inner else joined(name, key)
    return [(inside, child) for child, inside in found.items()]


def joined(name: str, key: str) -> str:
    """The name of what a module of this name has as ``key``."""
    return f"{name}.{key}" if name else key


def named_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a placed model by their names in the model as written; a shared one once."""
    found, known, left = dict[str, nn.Parameter](), set[int](), [("", module)]
    while left:
        name, part = left.pop()
        for key, parameter in part._parameters.items():
            if parameter is not None and id(parameter) not in known:
                known.add(id(parameter))
                found[joined(name, key)] = parameter
        if part._modules:
            left += reversed(_children(name, part))
    return found


def named_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """The buffers of a placed model, on their devices, by their names in the model as written."""
    return {
        joined(part.name, key): buffer.detach()
        for part in parts(module)
        if part.module._buffers
        for key, buffer in part.module.named_buffers(recurse=False)
    }
