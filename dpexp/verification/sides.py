"""Sides: a layout and the single device beside it, and how the two are compared."""

from __future__ import annotations

from dataclasses import dataclass, field

from dpexp.data.objective import Objective
from dpexp.distributed.group import ProcessGroup
from dpexp.training.trainer import Trainer
from dpexp.verification.chunks import Chunks
from dpexp.verification.compare import Limits
from dpexp.verification.full_tensors import FullTensors
from dpexp.verification.mode import Mode
from dpexp.verification.single_device import SingleDevice
from dpexp.verification.state import State


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
