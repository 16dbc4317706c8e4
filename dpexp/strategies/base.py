"""Strategy: how a model is laid over devices, and Placed: the model once it is."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import torch
from torch import nn

from dpexp.config.run_config import RunConfig
from dpexp.config.strategy_options import StrategyOptions
from dpexp.data.batch import Batch
from dpexp.distributed.process_group import ProcessGroup
from dpexp.strategies.prefetch import NoPrefetch, Prefetch
from dpexp.strategies.shards import Shards
from dpexp.timing import Timer

Devices: TypeAlias = Sequence[torch.device]


class GradientSync:
    """How gradients come together: here those of one process, which autograd adds up."""

    def computing(self, batch: Batch) -> AbstractContextManager[object]:
        """The context of everything of a step after its forward: loss, backward and optimizer."""
        return nullcontext()

    def backward(self, loss: torch.Tensor, batch: Batch) -> None:
        """Give every local parameter the gradient of the mean loss over the rows of the global batch.

        It may communicate: every rank must call it.
        """
        loss.backward()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Placed:
    """A model laid over devices: call ``module`` with inputs on ``input_device``, rows on dim 0.

    Outputs are on ``output_device``; ``devices`` are all that compute, the host included where it does.
    A loop over batches takes them from ``prefetch``, which may prepare those after the current one.
    ``is_opaque``: a user's code laid it out, and no wrapper says how it splits rows or what ranks send.
    """

    module: nn.Module
    input_device: torch.device
    output_device: torch.device
    devices: tuple[torch.device, ...]
    gradient_sync: GradientSync = field(default_factory=GradientSync)
    shards: Shards = field(default_factory=Shards)
    prefetch: Prefetch = field(default_factory=NoPrefetch)
    is_opaque: bool = False


@dataclass(frozen=True)
class Needs:
    """What a strategy needs from its caller.

    ``devices``: an accelerator, real or virtual; without one its wrapper passes through.
    ``prediction``: a run on fake tensors first, since the user's device map may mix devices.
    ``compile``: False if its modules must not be compiled: each step makes new ones.
    ``gradients``: a gradient for every parameter that requires one, in every step.
    ``full_tables``: True if the layout may depend on how many rows an embedding has.
    """

    devices: bool
    prediction: bool = False
    compile: bool = True
    gradients: bool = False
    full_tables: bool = False


class Strategy(ABC):
    """One layout, made from the config of a run. A subclass annotates ``options`` with its class of them."""

    needs: ClassVar[Needs]
    options: StrategyOptions

    def __init__(self, config: RunConfig, group: ProcessGroup | None = None) -> None:
        self.config = config
        self.options = config.options
        self.group = group or ProcessGroup()

    def configured(self, config: RunConfig) -> Strategy:
        """The same strategy with another config."""
        other = copy.copy(self)
        other.config, other.options = config, config.options
        return other

    def compiled(self, module: nn.Module) -> nn.Module:
        """The module, compiled in place if the config says so; it keeps its class and its names."""
        if self.config.compile:
            module.compile()
        return module

    def building(self) -> AbstractContextManager[object]:
        """The context in which the model is built."""
        return nullcontext()

    def prepare(self, model: nn.Module, devices: Devices) -> None:  # noqa: B027 - not every strategy checks
        """Check model and devices before a run opens, and set options of modules. Raises ConfigError."""

    def trying(self, model: nn.Module, inputs: Any) -> AbstractContextManager[None]:
        """Around the forward of a batch on the host, before a run opens. Raises ConfigError."""
        return nullcontext()

    def unused(self, names: Sequence[str]) -> None:  # noqa: B027 - only where ``needs.gradients``
        """Raises ConfigError if parameters that get no gradient, by their names, are an error."""

    @abstractmethod
    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        """Lay the model over the devices, in place; over the host if there are none."""
