"""Sides: a layout and the single device beside it, and how the two are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from dpexp import devices
from dpexp.data.objective import Objective
from dpexp.distributed.group import ProcessGroup
from dpexp.training.trainer import Trainer
from dpexp.verification.chunks import Chunks
from dpexp.verification.compare import Limits
from dpexp.verification.mode import Mode
from dpexp.verification.single_device import SingleDevice
from dpexp.verification.state import State


class FullTensors:
    """Of a trainer of which ranks may have parts of the model, as stages of a pipeline.

    Every rank must make one, and call its methods in the same order.
    """

    def __init__(self, layout: Trainer) -> None:
        self._layout = layout
        self._names = layout.parameters().keys() | layout.buffers().keys()
        self._has_stages = any(names != self._names for names in layout.group.all_gather(self._names))

    def parameters(self) -> dict[str, torch.Tensor]:
        """Copies of the full parameters, on the host."""
        full = self._layout.full_parameters()
        return self.completed({name: each.to(devices.HOST, copy=True) for name, each in full.items()})

    def buffers(self) -> dict[str, torch.Tensor]:
        """The buffers of this rank, and those that only others have."""
        return self.completed(self._layout.buffers())

    def completed(self, own: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """With what only other ranks have of their own parameters and buffers."""
        if not self._has_stages:
            return dict(own)
        everywhere = self._layout.group.complete(dict(own))
        return {
            key: tensor
            for key, tensor in everywhere.items()
            if key in own or key.partition(": ")[0] not in self._names
        }


@dataclass(frozen=True)
class Sides:
    """``layout`` is a trainer, of copies or the run's own; ``objective`` is that of its model.

    ``chunks`` says how the layout splits rows, ``mode`` how the single device computes them.
    ``is_short``: the run computes in a shorter type than float64, beside which it is judged, too.
    ``records``: each step records the calls of modules; else a step that differs is taken again for them.
    ``clips``: the limit of clipped gradients follows their norm.
    """

    layout: Trainer
    objective: Objective
    single: SingleDevice
    full: FullTensors
    limits: Limits
    chunks: Chunks = field(default_factory=Chunks)
    mode: Mode = field(default_factory=Mode)
    is_short: bool = False
    records: bool = False
    clips: bool = False

    @property
    def group(self) -> ProcessGroup:
        """The ranks of the layout."""
        return self.layout.group

    @property
    def is_split(self) -> bool:
        """Whether a forward may get a part of the rows."""
        return self.chunks.splits or self.group.size > 1

    def state(self, follows: frozenset[str] = frozenset()) -> State:
        """The layout's state, with these settings of the optimizer's groups and those known to change.

        Every rank must call this.
        """
        return State.of(self.layout, self.objective).following(self.single.follows | follows)
