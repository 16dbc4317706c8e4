"""The modules of a model: their names with wrappers around them, and what layouts do to them.

A strategy puts wrappers into a model, as ``DataParallel`` around ``block2``. Users, and so Records, name
modules as the model was written: a wrapper and what it wraps share one name.

    Blocks                     ""
      block1: Linear           "block1"
      block2: DataParallel     "block2"      (wrapper)
        module: Linear         "block2"

Below the names: submodules by the patterns of options.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import combinations
from math import prod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from dpexp.config.errors import ConfigError
from dpexp.config.words import did_you_mean, listed
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
        """The value, or a tuple of the values, with tensors on the device."""
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
        return prod(max(1, len(each.replica_devices)) for each in self.wrappers)


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


def as_written(name: str) -> str:
    """The name of a module without the checkpoint wrappers around it and the modules that have it."""
    return ".".join(key for key in name.split(".") if key != _CHECKPOINTED)


def is_transparent(module: nn.Module) -> bool:
    """Whether its inputs and outputs are those of the module that it wraps, which makes no replicas."""
    if isinstance(module, Wrapper):
        return module.transparent
    return bool(wrapped_key(module)) and not isinstance(module, DataParallel | nn.DataParallel)


def parts(module: nn.Module) -> Iterator[Part]:
    """Every module of a placed model, wrappers included, outermost first; a shared module under each name."""
    left = [Part("", module, ())]
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
            found[child] = name if inner and key == inner else child_name(name, key)
    return [(inside, child) for child, inside in found.items()]


def child_name(name: str, key: str) -> str:
    """The name of what a module of this name has as ``key``."""
    return f"{name}.{key}" if name else key


def named_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a placed model by their names in the model as written; a shared one once."""
    found, known = dict[str, nn.Parameter](), set[int]()
    for part in parts(module):
        for key, parameter in part.module._parameters.items():
            if parameter is not None and id(parameter) not in known:
                known.add(id(parameter))
                found[child_name(part.name, key)] = parameter
    return found


def named_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """{name in the model as written: buffer}, each in its own shape and on its device."""
    return {
        child_name(part.name, key): buffer.detach()
        for part in parts(module)
        if part.module._buffers
        for key, buffer in part.module.named_buffers(recurse=False)
    }


# --- submodules by the names and patterns of options --------------------------------------------------------


def matching(model: nn.Module, patterns: Sequence[str], option: str) -> tuple[str, ...]:
    """The names of the submodules that the patterns match: ``layers.*`` matches each child of ``layers``.

    A list or dict of modules stands for the modules in it, since it is not called itself. Raises ConfigError
    for a pattern that matches nothing, and for submodules that are named twice or lie inside one another.
    A pattern matches names of the model as written; the names returned have the checkpoint wrappers around.
    """
    known = dict[str, str]()
    for name, _ in model.named_modules():
        known.setdefault(as_written(name), name)  # of a wrapped module the wrapper
    del known[""]
    names: list[str] = []
    for pattern in patterns:
        found = [name for written, name in known.items() if _matches(written, pattern)]
        if not found:
            top = listed([name for name in known if "." not in name]) or "no submodules"
            hint = did_you_mean(pattern, known)
            raise ConfigError(f"{option} '{pattern}' not found; the model has {top}{hint}")
        names += found
    check_no_overlap(names, option)
    return tuple(inner for name in names for inner in inside_containers(model.get_submodule(name), name))


def _matches(name: str, pattern: str) -> bool:
    """Whether the pattern matches between the dots: ``*`` does not match a dot."""
    keys, patterns = name.split("."), pattern.split(".")
    return len(keys) == len(patterns) and all(map(fnmatchcase, keys, patterns))


def inside_containers(module: nn.Module, name: str) -> Iterator[str]:
    """The names of the modules inside of lists and dicts of them; of another module its own."""
    if not is_container(module):
        yield name
        return
    for key, child in module.named_children():
        yield from inside_containers(child, child_name(name, key))


def is_container(module: nn.Module) -> bool:
    """Whether it is a list or dict of modules, which has no forward."""
    return isinstance(module, nn.ModuleList | nn.ModuleDict) and type(module).forward is nn.Module.forward


def check_no_overlap(names: Sequence[str], option: str) -> None:
    """Raises ConfigError where a name is given twice or lies inside another."""
    for outer, name in combinations(sorted(names), 2):
        if name == outer:
            raise ConfigError(f"{option} '{name}' is given twice")
        if name.startswith(f"{outer}."):
            raise ConfigError(f"{option} '{name}' lies inside {option} '{outer}': name one of the two")


def units(
    model: nn.Module, names: Collection[str], prefix: str = ""
) -> Iterator[tuple[str, nn.Module, bool]]:
    """The named submodules and every largest one without a named one inside, each with its name and True.

    The modules around them, and lists and dicts of modules, come with False.
    """
    yield prefix, model, False
    for key, child in model._modules.items():
        name = f"{prefix}.{key}".lstrip(".")
        if child is None:
            continue
        if name not in names and (is_container(child) or any(n.startswith(f"{name}.") for n in names)):
            yield from units(child, names, name)
        else:
            yield name, child, True


def rewire(
    model: nn.Module,
    names: Collection[str],
    wrap: Callable[[str, nn.Module], nn.Module],
    default: torch.device,
) -> None:
    """Replace every unit by ``wrap(name, unit)``; one of several names is wrapped once.

    The parameters and buffers of the modules around them are placed on ``default``.
    """
    wrapped: dict[nn.Module, nn.Module] = {}
    for name, module, is_unit in list(units(model, names)):
        if is_unit:
            parent, _, key = name.rpartition(".")
            if module not in wrapped:
                wrapped[module] = wrap(name, module)
            model.get_submodule(parent)._modules[key] = wrapped[module]
        else:
            children, module._modules = module._modules, {}
            place(module, default)
            module._modules = children


def check_not_tied(
    model: nn.Module, device_map: Mapping[str, torch.device], default: torch.device, option: str
) -> None:
    """Raises ConfigError where ``rewire`` would put a tied parameter on two devices."""
    found: dict[int, tuple[str, torch.device]] = {}
    checked: set[nn.Module] = set()
    for name, module, is_unit in units(model, device_map):
        if module in checked:
            continue
        checked.add(module)
        device = device_map.get(name, default)
        for key, parameter in module.named_parameters(name, recurse=is_unit):
            other, there = found.setdefault(id(parameter), (key, device))
            if there != device:
                raise ConfigError(
                    f"{option}: '{other}' on {there} and '{key}' on {device} are one tied parameter, and a "
                    "parameter has one device: put both modules on one device"
                )


EmbeddingTable = nn.Embedding | nn.EmbeddingBag


def tables(module: nn.Module) -> list[EmbeddingTable]:
    """The embedding tables in a module."""
    return [part for part in module.modules() if isinstance(part, EmbeddingTable)]
