"""Update: what an equal optimizer, on full tensors, makes of the loop's gradients."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dpexp.config.errors import NotComparableError
from dpexp.watch.calls import full
from dpexp.watch.replay import rounded

OptimizerState = dict[str, dict[str, Any]]
_PLAIN = (int, float, str, tuple, torch.dtype, type(None))


@dataclass(frozen=True)
class Before:
    """What an optimizer is about to step from: full tensors by name, its parameter groups, its attributes."""

    parameters: Mapping[str, torch.Tensor]
    state: OptimizerState
    groups: Sequence[Mapping[str, Any]]
    attributes: Mapping[str, Any]

    @classmethod
    def of(
        cls, optimizer: torch.optim.Optimizer, held: Mapping[str, nn.Parameter], parameters: Mapping[str, Any]
    ) -> Before:
        """Before the step; every rank must call this."""
        groups = [
            {key: each if key == "params" else copy.deepcopy(each) for key, each in group.items()}
            for group in optimizer.param_groups
        ]
        return cls(parameters, state_of(optimizer, held), groups, dict(vars(optimizer)))


def state_of(optimizer: torch.optim.Optimizer, held: Mapping[str, nn.Parameter]) -> OptimizerState:
    """Copies of what the optimizer keeps of each parameter, by name; every rank must call this."""

    def of(value: Any) -> Any:
        return full(value).clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)

    return {
        name: {key: of(value) for key, value in optimizer.state.get(each, {}).items()}
        for name, each in held.items()
    }


def updated(
    optimizer: torch.optim.Optimizer,
    held: Mapping[str, nn.Parameter],
    before: Before,
    gradients: Mapping[str, torch.Tensor],
    draw: int | None = None,
) -> dict[str, torch.Tensor]:
    """The parameters by name that an equal optimizer computes from those before the step and its state.

    Raises NotComparableError for an optimizer whose copy could step the loop's own parameters.
    """
    own = {name: nn.Parameter(each.clone()) for name, each in before.parameters.items()}
    for name, each in own.items():
        each.grad = gradients[name].clone() if name in gradients else None
    equal = _copy_without_hooks(optimizer, before.attributes)
    by_id = {id(each): own[name] for name, each in held.items()}
    members = [[by_id[id(each)] for each in group["params"] if id(each) in by_id] for group in before.groups]
    equal.param_groups = [
        {**copy.deepcopy({**group, "params": []}), "params": each}
        for group, each in zip(before.groups, members, strict=True)
        if each
    ]
    equal.state = defaultdict(
        dict, {own[name]: copy.deepcopy(kept) for name, kept in before.state.items() if kept}
    )
    with rounded(draw):
        type(equal).step(equal)  # an LR scheduler has put another step on the instance
    return {name: each.detach() for name, each in own.items()}


def _copy_without_hooks(optimizer: torch.optim.Optimizer, attributes: Mapping[str, Any]) -> Any:
    """One like it, with these attributes. The loop's gradients are not scaled any more."""
    equal: Any = copy.copy(optimizer)
    for key, value in attributes.items():
        if key in vars(equal) or key in ("step", "grad_scale", "found_inf"):
            continue
        if not isinstance(value, _PLAIN):
            raise NotComparableError(
                f"{type(optimizer).__name__} has '{key}' of type {type(value).__name__}, by which a copy "
                "could step the loop's own parameters"
            )
        setattr(equal, key, value)
    return equal
