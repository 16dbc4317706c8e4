"""State: everything that the next step of a single device depends on, gathered from the ranks that own it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import torch

from dpexp import tensors
from dpexp.data.objective import Objective
from dpexp.data.rng import random_state
from dpexp.distributed.group import ProcessGroup
from dpexp.strategies.placed import Shards
from dpexp.training.optimizer_state import groups, keeper
from dpexp.training.trainer import Trainer


@dataclass(frozen=True)
class State:
    """Full tensors by name, on the host. ``buffers`` and ``random`` are those of each part of the rows.

    ``batches`` have come since the optimizer's step, and have given a single device these ``gradients``:
    ranks may have others until the last one. ``groups`` are those of the optimizers, and ``attributes`` what
    these keep elsewhere and have changed. The loss of ``objective`` may keep something from call to call.
    ``follows`` are the settings of the groups that are loaded, as ``group 0: lr``: those that steps change.
    """

    parameters: Mapping[str, torch.Tensor]
    buffers: Sequence[Mapping[str, torch.Tensor]]
    optimizer: Mapping[str, Mapping[str, Any]]
    groups: Sequence[list[dict[str, Any]]]
    attributes: Sequence[Mapping[str, Any]]
    batches: int
    random: Sequence[bytes]
    objective: Objective
    gradients: Mapping[str, torch.Tensor] = field(default_factory=dict)
    follows: frozenset[str] = frozenset()

    @classmethod
    def of(cls, trainer: Trainer, objective: Objective) -> State:
        """The state of a trainer and of its loss; every rank must call this."""
        group, optimizers = trainer.group, trainer.optimizers
        buffers = {name: buffer.cpu().clone() for name, buffer in trainer.buffers().items()}
        return cls(
            group.complete({name: each.cpu().clone() for name, each in trainer.full_parameters().items()}),
            group.one_of_each_dp_rank(group.all_gather(group.complete(buffers))),
            group.complete(copy.deepcopy(trainer.optimizer_state())),
            groups(optimizers.members) if optimizers is not None else [],
            optimizers.attributes() if optimizers is not None else [],
            optimizers.batches if optimizers is not None else 0,
            group.one_of_each_dp_rank(group.all_gather(random_state())),
            objective.copied(),
        )

    def optimizer_numbers(self) -> dict[str, torch.Tensor]:
        """Those of the optimizers, as ``fc.weight: exp_avg``, ``group 0: lr``, ``attribute: count``."""
        of_groups = (group for of_member in self.groups for group in of_member)
        kept = {
            **self.optimizer,
            **{f"group {number}": group for number, group in enumerate(of_groups)},
        }
        named = [
            (f"{name}: {key}", value) for name, of_name in kept.items() for key, value in of_name.items()
        ]
        named += [(f"attribute: {path}", value) for each in self.attributes for path, value in each.items()]
        return {name: _numbers(value) for name, value in named if _is_number(value)}

    def following(self, settings: frozenset[str]) -> State:
        """The same, with only these settings of the optimizers' groups: others stay as they were made."""
        numbers = count()
        kept = [
            [
                {key: value for key, value in group.items() if f"group {number}: {key}" in settings}
                for group, number in zip(of_member, numbers, strict=False)
            ]
            for of_member in self.groups
        ]
        return replace(self, groups=kept, follows=settings)

    def without_gradients(self) -> State:
        """The same before the first batch since the optimizer's step."""
        return replace(self, gradients={}, batches=0)

    def load(self, trainer: Trainer) -> None:
        """Load it into a single device; a buffer of another shape, which has grown, stays as it is."""
        values = {**self.parameters, **self.buffers[0]}
        for name, tensor in {**trainer.parameters(), **trainer.buffers()}.items():
            if name in values and values[name].shape == tensor.shape:
                tensor.detach().copy_(values[name])
        for name, parameter in trainer.parameters().items():
            gradient = self.gradients.get(name)
            parameter.grad = None if gradient is None else gradient.to(parameter, copy=True)
        if trainer.optimizers is None:
            return
        trainer.optimizers.batches = self.batches
        names = {id(parameter): name for name, parameter in trainer.parameters().items()}
        for member in trainer.optimizers.members:
            state = keeper(member).state
            for parameter in (each for group in member.param_groups for each in group["params"]):
                kept = self.optimizer.get(names.get(id(parameter), ""))
                state.pop(parameter, None)
                if kept is not None:
                    state[parameter] = {key: _near(parameter, value) for key, value in kept.items()}

    def apart(self, group: ProcessGroup) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Parameters that ranks do not have alike: own and that of the first; every rank must call this."""
        by_rank = group.all_gather({name: tensors.digest([each]) for name, each in self.parameters.items()})
        names = [name for name, bits in by_rank[0].items() if any(each[name] != bits for each in by_rank)]
        return {name: (self.parameters[name], group.broadcast(0, self.parameters[name])) for name in names}


def forget(trainer: Trainer) -> None:
    """Drop the gradients of a single device and what its optimizers keep, which the next state brings."""
    trainer.clear()
    for member in trainer.optimizers.members if trainer.optimizers is not None else ():
        for parameter in (each for group in member.param_groups for each in group["params"]):
            keeper(member).state.pop(parameter, None)


def _is_number(value: Any) -> bool:
    entries = value if isinstance(value, list | tuple) else (value,)
    return all(isinstance(each, torch.Tensor | int | float) for each in entries)


def _numbers(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.float64)


def _near(parameter: torch.Tensor, value: Any) -> Any:
    """A copy of what an optimizer keeps of a parameter: on its device, but for counters."""
    is_like = isinstance(value, torch.Tensor) and value.dim() > 0
    return value.to(parameter.device, copy=True) if is_like else copy.deepcopy(value)


class RowShards(Shards):
    """The shards of a layout, of whose large tables only these ``rows`` are read."""

    def __init__(self, shards: Shards, rows: Mapping[str, torch.Tensor]) -> None:
        self._shards, self._rows = shards, rows

    def full_tensor(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The full tensor; of a large table these rows, dense and on the host."""
        full = self._shards.full_tensor(name, tensor)
        if name not in self._rows:
            return full
        ids = self._rows[name].to(full.device)
        return (full.coalesce().index_select(0, ids).to_dense() if full.is_sparse else full[ids]).cpu()


def read_by_rows(layout: Trainer, rows: Mapping[str, torch.Tensor]) -> Trainer:
    """The same trainer, of whose large tables these rows are read; itself without large tables."""
    if not rows:
        return layout
    trainer, placed = copy.copy(layout), copy.copy(layout.placed)
    placed.shards = RowShards(placed.shards, rows)
    trainer.placed = placed
    return trainer
