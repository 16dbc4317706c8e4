"""Strategy: how a model is laid out across devices, and what it needs for that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import torch
from torch import nn

from dpexp.config.strategy_options import StrategyOptions
from dpexp.data.batch import Batch
from dpexp.distributed.group import ProcessGroup
from dpexp.strategies.blocks import blocks_of
from dpexp.strategies.checkpoint import checkpoint_blocks
from dpexp.strategies.placed import Placed
from dpexp.timing import Timer

Devices: TypeAlias = Sequence[torch.device]


@dataclass(frozen=True)
class Needs:
    """What a strategy needs from its caller.

    ``devices``: an accelerator, real or virtual; without one its wrapper passes through.
    ``prediction``: a run on fake tensors first, since the user's device map may mix devices.
    ``gradients``: a gradient for every parameter that requires one, in every step.
    ``user_code``: whether the layout is a user's code, which may change more than the model.
    """

    devices: bool
    prediction: bool = False
    gradients: bool = False
    user_code: bool = False


@dataclass
class Strategy(ABC):
    """One layout, made from its options. A subclass annotates ``options`` with its class of them.

    ``backend``: that of DataParallel. ``trains``: whether the run has backwards. ``checkpoint``: whether
    these compute the activations of blocks again.
    """

    needs: ClassVar[Needs]
    options: StrategyOptions
    group: ProcessGroup = field(default_factory=ProcessGroup)
    backend: str = "auto"
    trains: bool = True
    checkpoint: bool = False

    @property
    def name(self) -> str:
        """As on the command line."""
        return self.options.strategy

    @property
    def has_ranks(self) -> bool:
        """Whether each device has a process of its own. Raises ConfigError where no layout can be loaded."""
        return self.options.launched_ranks is not None

    def row_parts(self, devices: Devices) -> int:
        """Into how many parts the layout splits the rows that the model gets, at most."""
        return self.group.dp_size

    def check_rows(self, batch: Batch, devices: Devices) -> None:
        """Raises ConfigError for a batch that the layout would have to split, and cannot."""
        batch.check_rows(self.row_parts(devices))

    def check_outputs(self, outputs: Any, batch: Batch, devices: Devices) -> None:  # noqa: B027 - likewise
        """Raises ConfigError for outputs of a batch that the layout would join, and cannot."""

    def prepare(self, model: nn.Module, devices: Devices) -> None:  # noqa: B027 - not every strategy checks
        """Check model and devices before a run opens, and set options of modules. Raises ConfigError."""

    def unused(self, names: Sequence[str]) -> None:  # noqa: B027 - only where ``needs.gradients``
        """Raises ConfigError if parameters that get no gradient, by their names, are an error."""

    def checkpointed(self, model: nn.Module) -> list[str]:
        """The names of the blocks whose activations are computed again, if any are."""
        return blocks_of(model)

    def lay_out(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        """``place``, after the blocks of the model are checkpointed, where the run does that."""
        if self.checkpoint:
            checkpoint_blocks(model, self.checkpointed(model))
        return self.place(model, devices, timer)

    @abstractmethod
    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        """Lay the model out across the devices, in place; over the host if there are none."""
