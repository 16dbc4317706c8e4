"""The state of optimizers as verification has it: full tensors, by names of parameters."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from dpexp.strategies.shards import Shards
from dpexp.training.optimizers import Optimizers


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


def groups(optimizers: Optimizers) -> list[list[dict[str, Any]]]:
    """What the parameter groups of each optimizer have besides parameters, which its steps may change."""
    return [[_copied(group) for group in each.param_groups] for each in optimizers.members]


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers, texts, lists of numbers, and tensors on the host; no parameters."""
    return {
        key: value.detach().cpu().clone() if isinstance(value, torch.Tensor) else copy.copy(value)
        for key, value in values.items()
        if _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(each, int | float) for each in value)
    return type(value) is torch.Tensor or isinstance(value, int | float | str | None)
