"""Optimizer state: what optimizers keep of each parameter and in their groups, for verification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dpexp.strategies.placed import Shards
from dpexp.training.attributes import copied_value

if TYPE_CHECKING:
    from dpexp.training.optimizers import Optimizers


def keeper(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The one that keeps the state: a ZeroRedundancyOptimizer has it in one of its own."""
    inner = getattr(optimizer, "optim", None)
    return inner if isinstance(inner, torch.optim.Optimizer) else optimizer


def full_state(optimizers: Optimizers, shards: Shards) -> dict[str, dict[str, Any]]:
    """What the optimizers keep of each parameter, on the host; every rank must call this."""
    return {
        name: {key: _full(shards, name, parameter, value) for key, value in state.items()}
        for name, parameter, state in optimizers.states()
    }


def _full(shards: Shards, name: str, parameter: nn.Parameter, value: Any) -> Any:
    """The full tensor of what has the rows of the parameter. Other tensors, as counters, are no shards."""
    if not isinstance(value, torch.Tensor):
        return value
    is_shard = value.dim() == parameter.dim() > 0 and len(value) == len(parameter)
    return (shards.full_tensor(name, value) if is_shard else value.detach()).cpu()


def groups(optimizers: Optimizers) -> list[list[dict[str, Any]]]:
    """What the parameter groups of each optimizer have besides parameters, which its steps may change.

    Numbers, texts, lists of numbers, and tensors on the host.
    """
    return [
        [
            {key: copied_value(value) for key, value in group.items() if _is_plain(value)}
            for group in each.param_groups
        ]
        for each in optimizers.members
    ]


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(isinstance(each, int | float) for each in value)
    return type(value) is torch.Tensor or isinstance(value, int | float | str | None)
