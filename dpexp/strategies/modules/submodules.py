"""Submodules by the names and patterns that options give: find, check, and replace them in their model."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import combinations

import torch
from torch import nn

from dpexp.config.alike import listed
from dpexp.config.errors import ConfigError, did_you_mean
from dpexp.devices import place


def matching(model: nn.Module, patterns: Sequence[str], option: str) -> tuple[str, ...]:
    """The names of the submodules that the patterns match: ``layers.*`` matches each child of ``layers``.

    A list or dict of modules stands for the modules in it, since it is not called itself. Raises ConfigError
    for a pattern that matches nothing, and for submodules that are named twice or lie inside one another.
    """
    known = [name for name, _ in model.named_modules() if name]
    names: list[str] = []
    for pattern in patterns:
        found = [name for name in known if _matches(name, pattern)]
        if not found:
            raise _not_found(model, pattern, known, option)
        names += found
    check_no_overlap(names, option)
    return tuple(inner for name in names for inner in _inside_containers(model.get_submodule(name), name))


def _not_found(model: nn.Module, pattern: str, known: Sequence[str], option: str) -> ConfigError:
    if pattern in model.state_dict():
        owner = pattern.rpartition(".")[0]
        hint = f"name its module '{owner}'" if owner else "it belongs to the model itself"
        return ConfigError(f"{option} '{pattern}' is a parameter, not a module; {hint}")
    top = [name for name in known if "." not in name]
    hint = did_you_mean(pattern, known)
    return ConfigError(
        f"{option} '{pattern}' not found; the model has {listed(top) or 'no submodules'}{hint}"
    )


def _matches(name: str, pattern: str) -> bool:
    """Whether the pattern matches between the dots: ``*`` does not match a dot."""
    keys, patterns = name.split("."), pattern.split(".")
    return len(keys) == len(patterns) and all(map(fnmatchcase, keys, patterns))


def _inside_containers(module: nn.Module, name: str) -> Iterator[str]:
    """The name, or those of the modules in a list or dict of modules."""
    if not is_container(module):
        yield name
        return
    for key, child in module.named_children():
        yield from _inside_containers(child, f"{name}.{key}")


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
