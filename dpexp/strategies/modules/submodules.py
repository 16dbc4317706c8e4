"""Submodules by the names and patterns that options give: find, check, and replace them in their model."""

from collections.abc import Callable, Collection, Iterator, Sequence
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


def check_not_tied(model: nn.Module, names: Collection[str], option: str) -> None:
    """Raises ConfigError where a named submodule shares a parameter with one that is not named."""
    owners: dict[int, list[tuple[str, str]]] = {}
    for name, module in model.named_modules():
        for key, parameter in module.named_parameters(recurse=False):
            owners.setdefault(id(parameter), []).append((name, f"{name}.{key}".lstrip(".")))
    for several in owners.values():
        inside = [parameter for owner, parameter in several if is_inside(owner, names)]
        outside = [parameter for owner, parameter in several if not is_inside(owner, names)]
        if inside and outside:
            groups = [{owner for owner, _ in each} for each in owners.values()]
            raise ConfigError(
                f"{option}: '{inside[0]}' and '{outside[0]}' are one tied parameter, and a parameter has one "
                f"device: {_mend_of_tied(names, groups, option)}"
            )


def is_inside(module: str, names: Collection[str]) -> bool:
    """Whether a module has one of the names, or lies in a module that has."""
    return any(module == name or module.startswith(f"{name}.") for name in names)


def _mend_of_tied(names: Collection[str], groups: Sequence[set[str]], option: str) -> str:
    """The smallest set of submodules that has the named ones and shares no parameter with another.

    Each group is the modules that hold one parameter.
    """
    found = set(names)
    while split := [g for g in groups if len({is_inside(owner, found) for owner in g}) == 2]:
        found.update(*split)
    if "" in found:
        return "the model itself holds it, so that none of its modules can be named; name others"
    outermost = [name for name in sorted(found) if not is_inside(name, found - {name})]
    return "the smallest set that works is " + " ".join(f"{option} {name}" for name in outermost)


def rewire(
    model: nn.Module,
    names: Collection[str],
    wrap: Callable[[str, nn.Module], nn.Module],
    default: torch.device,
) -> None:
    """Replace every named submodule, and every largest one without a named one inside, by ``wrap(name, it)``.

    The modules around the named ones, and lists and dicts of modules, stay: their own parameters and buffers
    are placed on ``default``. A submodule of several names is wrapped once.
    """
    wrapped: dict[nn.Module, nn.Module] = {}

    def descend(module: nn.Module, prefix: str) -> None:
        children, module._modules = module._modules, {}
        place(module, default)
        module._modules = children
        for key, child in list(children.items()):
            name = f"{prefix}{key}"
            if child is None:
                continue
            if name not in names and (is_container(child) or any(n.startswith(f"{name}.") for n in names)):
                descend(child, f"{name}.")
                continue
            if child not in wrapped:
                wrapped[child] = wrap(name, child)
            children[key] = wrapped[child]

    descend(model, "")
