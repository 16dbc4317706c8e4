"""State: what the next step of a single device depends on, and how it is loaded with that of a layout."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dpexp import tensors
from dpexp.strategies.shards import Shards
from dpexp.training.optimizer_state import groups
from dpexp.training.optimizers import Optimizers
from dpexp.training.trainer import Trainer


@dataclass
class State:
    """Full tensors by name, on the host; ``batches`` have given ``gradients`` since the optimizer's step."""

    parameters: Mapping[str, torch.Tensor]
    buffers: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, Mapping[str, Any]]
    gradients: Mapping[str, torch.Tensor | None]
    batches: int

    @classmethod
    def of(cls, trainer: Trainer) -> State:
        """A copy of the state of a single device."""
        optimizers, parameters = trainer.optimizers, trainer.parameters()
        return cls(
            {name: tensor.detach().clone() for name, tensor in parameters.items()},
            {name: tensor.clone() for name, tensor in trainer.buffers().items()},
            copy.deepcopy(trainer.optimizer_state()),
            {name: None if each.grad is None else each.grad.clone() for name, each in parameters.items()},
            optimizers.batches if optimizers is not None else 0,
        )

    def load(self, trainer: Trainer) -> None:
        """Load it into a single device; a buffer of another shape, which has grown, stays as it is."""
        values = {**self.parameters, **self.buffers}
        for name, tensor in {**trainer.parameters(), **trainer.buffers()}.items():
            if name in values and values[name].shape == tensor.shape:
                tensor.detach().copy_(values[name])
        for name, parameter in trainer.parameters().items():
            gradient = self.gradients.get(name)
            parameter.grad = None if gradient is None else gradient.to(parameter.dtype, copy=True)
        if trainer.optimizers is not None:
            trainer.optimizers.batches = self.batches
            self._load_optimizer(trainer.optimizers, trainer)

    def _load_optimizer(self, optimizers: Optimizers, trainer: Trainer) -> None:
        names = {id(parameter): name for name, parameter in trainer.parameters().items()}
        for member in optimizers.members:
            for group in member.param_groups:
                for parameter in group["params"]:
                    kept = self.optimizer.get(names.get(id(parameter), ""))
                    member.state.pop(parameter, None)
                    if kept is not None:
                        member.state[parameter] = copy.deepcopy(dict(kept))


def of_layout(layout: Trainer, reference: Trainer) -> State:
    """The state of a layout for its single device, whose own gradients accumulate; every rank must call it.

    Buffers are those of rank 0, which a replica or a rank of its own may write otherwise.
    """
    group, buffers = layout.group, {name: buffer.cpu() for name, buffer in layout.buffers().items()}
    return State(
        layout.complete_parameters(),
        group.complete(buffers) | group.broadcast(0, buffers),
        group.complete(layout.optimizer_state()),
        {name: parameter.grad for name, parameter in reference.parameters().items()},
        reference.optimizers.batches if reference.optimizers is not None else 0,
    )


def follow_groups(reference: Trainer, layout: Trainer, first: list[list[dict[str, Any]]]) -> None:
    """Load what the optimizer changes in its own parameter groups: what it has changed since ``first``."""
    if reference.optimizers is None or layout.optimizers is None:
        return
    members = reference.optimizers.members
    for member, now, before in zip(members, groups(layout.optimizers), first, strict=False):
        for group, of_layout, at_first in zip(member.param_groups, now, before, strict=False):
            changed = {key for key, value in at_first.items() if _numbers(group[key]) != _numbers(value)}
            group.update({key: value for key, value in of_layout.items() if key in changed})


def _numbers(value: Any) -> list[Any]:
    """What can be compared of a value that may contain arrays and tensors."""
    return [
        (path, leaf.tolist() if hasattr(leaf, "tolist") else leaf) for path, leaf in tensors.leaves(value)
    ]


def give_gradients(trainer: Trainer, gradients: Mapping[str, torch.Tensor]) -> None:
    """The run's gradients for a single device, whose own differ from them by rounding."""
    for name, parameter in trainer.parameters().items():
        value = gradients.get(name)
        parameter.grad = (
            None if value is None else _like(value.to(parameter.dtype, copy=True), parameter.grad)
        )


def additions(trainer: Trainer) -> dict[str, int]:
    """How often an optimizer may add to a row of each parameter: as often as a sparse gradient has it."""
    return {
        name: int(torch.bincount(each.grad._indices()[0]).max())
        if each.grad is not None and each.grad.is_sparse and each.grad._nnz()
        else 1
        for name, each in trainer.parameters().items()
    }


def _like(value: torch.Tensor, before: torch.Tensor | None) -> torch.Tensor:
    """The gradient, as sparse as the one that it replaces."""
    if before is None or before.is_sparse == value.is_sparse:
        return value
    if value.is_sparse:
        return value.to_dense()
    rows = before.coalesce().indices()
    return torch.sparse_coo_tensor(rows, value[rows[0]], before.shape, check_invariants=False)


class RowShards(Shards):
    """The shards of a layout, of whose large tables only these ``rows`` are read."""

    def __init__(self, shards: Shards, rows: Mapping[str, torch.Tensor]) -> None:
        self._shards, self._rows = shards, rows
        self.full_shapes, self.units = shards.full_shapes, shards.units

    def full_tensor(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name in self._rows:
            return self._shards.rows(name, tensor, self._rows[name])
        return self._shards.full_tensor(name, tensor)

    def norm(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        return self._shards.norm(name, gradient)


def read_by_rows(layout: Trainer, rows: Mapping[str, torch.Tensor]) -> Trainer:
    """The same trainer, of whose large tables these rows are read; itself without large tables."""
    if not rows:
        return layout
    trainer, placed = copy.copy(layout), copy.copy(layout.placed)
    object.__setattr__(placed, "shards", RowShards(placed.shards, rows))  # it is frozen
    trainer.placed = placed
    return trainer
