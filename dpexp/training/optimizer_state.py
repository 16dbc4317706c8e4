"""The state of optimizers as snapshots and verification have it: full tensors, by names of parameters."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from dpexp.strategies.shards import Shards
from dpexp.training.optimizers import Optimizers

PLAIN = (int, float, bool, str, type(None), np.generic, np.ndarray)
_CONTAINERS = (list, tuple, set)


def full_state(optimizers: Optimizers, shards: Shards) -> dict[str, dict[str, Any]]:
    """What the optimizers keep of each parameter, on the host; every rank must call this."""
    return {
        name: {key: _full(shards, name, parameter, value) for key, value in state.items()}
        for name, parameter, state in optimizers.states()
    }


def _full(shards: Shards, name: str, parameter: nn.Parameter, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return (shards.full_tensor(name, value) if _is_sharded_as(parameter, value) else value.detach()).cpu()


def _is_sharded_as(parameter: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether a tensor of the state has the rows of the parameter. Others, as counters, are not shards."""
    return value.dim() == parameter.dim() > 0 and len(value) == len(parameter)


def load_full_state(optimizers: Optimizers, shards: Shards, saved: dict[str, dict[str, Any]]) -> None:
    """Load what ``full_state`` returned into optimizers that have taken steps."""
    for name, parameter, state in optimizers.states():
        wanted = saved.get(name, {})
        for key in state.keys() - wanted.keys():
            del state[key]
        for key, value in wanted.items():
            found = state.get(key)
            if not isinstance(value, torch.Tensor):
                state[key] = value
                continue
            if not isinstance(found, torch.Tensor):  # made in a later step than the optimizer has taken
                found = state[key] = _empty(parameter, value)
            if _is_sharded_as(parameter, found):
                shards.load_full_tensor(name, found, value)
            else:
                found.copy_(value)


def _empty(parameter: nn.Parameter, value: torch.Tensor) -> torch.Tensor:
    """What a rank keeps of a parameter, where all ranks keep ``value`` of it."""
    if value.dim() == parameter.dim() > 0 and value.shape[1:] == parameter.shape[1:]:
        return torch.zeros_like(parameter.detach(), dtype=value.dtype)
    return torch.empty_like(value, device=parameter.device if value.dim() else value.device)


def groups(optimizers: Optimizers) -> list[list[dict[str, Any]]]:
    """What the parameter groups of each optimizer have besides parameters, which its steps may change."""
    return [[_copied(group) for group in each.param_groups] for each in optimizers.members]


def load_groups(optimizers: Optimizers, saved: list[list[dict[str, Any]]]) -> None:
    """Load what ``groups`` returned. Older snapshots may have one optimizer more, for the tables."""
    for member, of_member in zip(optimizers.members, saved, strict=False):
        for group, values in zip(member.param_groups, of_member, strict=True):
            _load(group, values)


def attributes(optimizers: Optimizers) -> list[dict[str, Any]]:
    """What each optimizer keeps that belongs to no parameter: as attributes, and in its ``state``."""
    return [
        {"attributes": _copied(vars(each)), "state": {key: each.state[key] for key in _names(each)}}
        for each in optimizers.members
    ]


def load_attributes(optimizers: Optimizers, saved: list[dict[str, Any]]) -> None:
    """Load what ``attributes`` returned; older snapshots have none."""
    for member, values in zip(optimizers.members, saved, strict=False):
        _load(vars(member), values["attributes"])
        for key in _names(member):
            del member.state[key]
        member.state.update(values["state"])


def _names(optimizer: torch.optim.Optimizer) -> list[Any]:
    """The keys of what it keeps of no parameter."""
    return [key for key in optimizer.state if not isinstance(key, torch.Tensor)]


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers, texts, and lists, tuples, sets and dicts of them, and tensors on the host; no parameters."""
    return {
        key: value.detach().cpu() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
        for key, value in values.items()
        if _is_kept(value)
    }


def not_kept(optimizers: Optimizers) -> list[str]:
    """The names of what ``groups`` and ``attributes`` leave out, but for parameters, code and torch's own."""
    of_torch = {"params", *vars(torch.optim.Optimizer([torch.empty(1)], {}))}
    values = [values for each in optimizers.members for values in (vars(each), *each.param_groups)]
    left_out = {
        name: None
        for each in values
        for name, value in each.items()
        if name not in of_torch and not (_is_kept(value) or _is_code(value) or _is_of_parameters(value))
    }
    return list(left_out)


def _is_code(value: Any) -> bool:
    return callable(value) and not isinstance(value, nn.Module)


def _is_of_parameters(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, nn.Parameter) for each in value)


def _is_kept(value: Any) -> bool:
    return type(value) is torch.Tensor or _is_plain(value)


def _is_plain(value: Any, within: tuple[int, ...] = ()) -> bool:
    """Whether numbers and texts are all that is in it; not so for a list that is ``within`` itself."""
    if type(value) in (dict, *_CONTAINERS):
        inside = (*value, *value.values()) if type(value) is dict else value
        return id(value) not in within and all(_is_plain(each, (*within, id(value))) for each in inside)
    is_of_objects = isinstance(value, np.ndarray) and value.dtype.hasobject
    return isinstance(value, PLAIN) and not is_of_objects


def _load(values: dict[str, Any], saved: Mapping[str, Any]) -> None:
    """Replace what was saved; tensors, lists and dicts keep their place, which others may refer to."""
    for key, value in saved.items():
        found = values.get(key)
        if isinstance(found, torch.Tensor) and isinstance(value, torch.Tensor):
            found.detach().copy_(value)
        elif type(found) is type(value) is list:
            found[:] = value
        elif type(found) is type(value) is dict:
            found.clear()
            found.update(value)
        else:
            values[key] = value
