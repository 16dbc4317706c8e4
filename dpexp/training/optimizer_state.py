"""The state of optimizers as snapshots and verification have it: full tensors, by names of parameters."""

from typing import Any

import torch
from torch import nn

from dpexp.strategies.shards import Shards
from dpexp.training.optimizers import Optimizers

PLAIN = (int, float, bool, str, type(None))


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
            elif isinstance(found, torch.Tensor):
                if _is_sharded_as(parameter, found):
                    shards.load_full_tensor(name, found, value)
                else:
                    found.copy_(value)
            else:
                raise RuntimeError(f"the optimizer keeps no '{key}' of {name}, and the snapshot has one")


def groups(optimizers: Optimizers) -> list[list[dict[str, Any]]]:
    """The numbers and texts in the parameter groups of each optimizer, which its steps may change."""
    return [
        [
            {key: value for key, value in group.items() if isinstance(value, PLAIN)}
            for group in each.param_groups
        ]
        for each in optimizers.members
    ]


def load_groups(optimizers: Optimizers, saved: list[list[dict[str, Any]]]) -> None:
    """Load what ``groups`` returned. Older snapshots may have one optimizer more, for the tables."""
    for member, of_member in zip(optimizers.members, saved, strict=False):
        for group, values in zip(member.param_groups, of_member, strict=True):
            group.update(values)
