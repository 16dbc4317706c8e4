"""Optimizer state: what optimizers keep of each parameter, in their groups, and in attributes.

    schedule.last_epoch    a schedule that its ``step`` advances, or a hook of it
    momentum.0             the first tensor of a list
    norms                  a list of numbers

Attributes are found by a walk from the optimizer through attributes, lists, dicts and the closures of
functions. It ends at modules, parameters, and objects of the standard library and of torch outside of
``torch.optim``.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, TypeAlias

import torch
from torch import nn

from dpexp.strategies.placed import Shards

States: TypeAlias = Iterable[tuple[str, nn.Parameter, Mapping[str, Any]]]
"""(name, parameter, what is kept of it) of the parameters of optimizers."""


def keeper(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The one that keeps the state: a ZeroRedundancyOptimizer has it in one of its own."""
    inner = getattr(optimizer, "optim", None)
    return inner if isinstance(inner, torch.optim.Optimizer) else optimizer


def full_state(states: States, shards: Shards) -> dict[str, dict[str, Any]]:
    """What the optimizers keep of each parameter, on the host; every rank must call this."""
    return {
        name: {key: _full(shards, name, parameter, value) for key, value in state.items()}
        for name, parameter, state in states
    }


def _full(shards: Shards, name: str, parameter: nn.Parameter, value: Any) -> Any:
    """The full tensor of what has the rows of the parameter. Other tensors, as counters, are no shards."""
    if not isinstance(value, torch.Tensor):
        return value
    is_shard = value.dim() == parameter.dim() > 0 and len(value) == len(parameter)
    return (shards.full_tensor(name, value) if is_shard else value.detach()).cpu()


def groups(members: Iterable[torch.optim.Optimizer]) -> list[list[dict[str, Any]]]:
    """What the parameter groups of each optimizer have besides parameters, which its steps may change.

    Numbers, texts, lists of numbers, and tensors on the host.
    """
    return [
        [
            {key: copied_value(value) for key, value in group.items() if _is_plain(value)}
            for group in each.param_groups
        ]
        for each in members
    ]


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(each, int | float) for each in value)
    return type(value) is torch.Tensor or isinstance(value, int | float | str | None)


# --- attributes ---

_PASSED_OVER = {"state", "param_groups", "defaults", "_opt_called"}
"""What State has anyway, and a note of PyTorch's schedules that ``step`` was called."""


class HiddenStateError(RuntimeError):
    """An optimizer keeps something in an attribute that another optimizer has no place for."""


@dataclass(frozen=True)
class _Entry:
    """A value that something refers to by this name; ``write`` replaces it, where that is possible."""

    name: Any
    value: Any
    write: Callable[[Any], object] | None = None


def attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Copies of the numbers, lists of numbers and tensors by path; tensors are full and on the host.

    Every rank must call this.
    """
    return {path: copied_value(entry.value) for path, entry in _walk(optimizer)}


def write_attributes(optimizer: torch.optim.Optimizer, values: Mapping[str, Any]) -> None:
    """Give the optimizer these of another one. Raises HiddenStateError where it has no place for one."""
    entries = dict(_walk(optimizer)) if values else {}
    for path, value in values.items():
        entry = entries.get(path)
        if entry is None or getattr(entry.value, "shape", ()) != getattr(value, "shape", ()):
            raise HiddenStateError(
                f"{type(optimizer).__name__} keeps '{path}' in an attribute, for which the optimizer of a "
                "single device has no place: one that keeps it in self.state[parameter] can be compared"
            )
        if isinstance(value, torch.Tensor):
            entry.value.detach().copy_(value)
        elif isinstance(value, list):
            entry.value.clear()
            entry.value.extend(value)
        elif entry.write is not None:
            entry.write(value)


def is_equal(value: Any, other: Any) -> bool:
    """Whether two attributes have the same value."""
    if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
        return value.shape == other.shape and torch.equal(value, other)
    return type(value) is type(other) and bool(value == other)


def _walk(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, _Entry]]:
    """The numbers, lists of numbers and tensors that can be written, with their paths, each once."""
    if not _is_walked(type(optimizer)):
        return iter(())
    kept = (optimizer.state, *optimizer.state.values())  # another optimizer inside may have them, too
    met = {
        *map(id, (optimizer, *kept)),
        *(id(p) for group in optimizer.param_groups for p in group["params"]),
    }
    entries = [each for each in _entries(vars(optimizer)) if each.name not in _PASSED_OVER]
    return _leaves("", entries, met)


def _leaves(prefix: str, entries: list[_Entry], met: set[int]) -> Iterator[tuple[str, _Entry]]:
    for entry in entries:
        path, value = f"{prefix}{entry.name}", entry.value
        if isinstance(value, int | float):
            if entry.write is not None:
                yield path, entry
        elif id(value) not in met:
            met.add(id(value))
            if isinstance(value, torch.Tensor) or _is_series(value):
                yield path, entry
            else:
                yield from _leaves(f"{path}.", _entries(value), met)


def _entries(value: Any) -> list[_Entry]:
    """What a value refers to; nothing where the walk ends."""
    if isinstance(value, dict):
        named = [(key if isinstance(key, str) else at, key) for at, key in enumerate(value)]
        return [_Entry(name, value[key], partial(value.__setitem__, key)) for name, key in named]
    if isinstance(value, list):
        return [_Entry(at, each, partial(value.__setitem__, at)) for at, each in enumerate(value)]
    if isinstance(value, tuple):
        return [_Entry(at, each) for at, each in enumerate(value)]
    if isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        return [
            _Entry(name, cell.cell_contents, partial(setattr, cell, "cell_contents"))
            for name, cell in cells
            if cell != CellType()  # which has nothing yet
        ]
    if isinstance(value, MethodType):
        return [_Entry("self", value.__self__), _Entry("function", value.__func__)]
    if isinstance(value, partial):
        return [
            _Entry("function", value.func),
            _Entry("args", value.args),
            _Entry("keywords", value.keywords),
        ]
    return _entries(vars(value)) if hasattr(value, "__dict__") and _is_walked(type(value)) else []


def _is_walked(kind: type) -> bool:
    """Whether objects of this class are a user's, or PyTorch's schedules."""
    package = kind.__module__.partition(".")[0]
    is_known = package in ("torch", "dpexp", "builtins") or package in sys.stdlib_module_names
    return not issubclass(kind, nn.Module) and (not is_known or kind.__module__.startswith("torch.optim"))


def _is_series(value: Any) -> bool:
    """Whether it is a list of numbers, which may become longer."""
    return isinstance(value, list | deque) and all(isinstance(each, int | float) for each in value)


def copied_value(value: Any) -> Any:
    """A number or text itself, a new list, or the full tensor in new memory of the host."""
    if _is_series(value):
        return list(value)
    if not isinstance(value, torch.Tensor):
        return value
    full: Any = value.detach()
    return (full.full_tensor() if hasattr(full, "placements") else full).cpu().clone()
