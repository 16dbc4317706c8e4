"""Strategy: how a model is laid over devices, and Placed: the model laid out."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import nn

from dpexp.config import RunConfig
from dpexp.data import Batch
from dpexp.distributed.process_group import ProcessGroup
from dpexp.timing import Timer


class GradientSync:
    """How this process brings its part of a global batch to gradients; alone, all of it.

    ``whole`` gives all of a tensor of which this process may hold a part only, and ``put`` writes all of
    a tensor into the part; every rank must call them in the same order.
    """

    def backward(self, loss: torch.Tensor, batch: Batch) -> None:
        """Gradients of the global batch's mean loss, on every parameter that this process holds."""
        loss.backward()  # type: ignore[no-untyped-call]

    def full_tensor(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor`` is the parameter of this name (as the model's author named it), or its gradient."""
        return tensor.detach()

    def load_full_tensor(self, name: str, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """The inverse of ``whole``."""
        tensor.detach().copy_(value)


@dataclass(frozen=True)
class Placed:
    """A model laid over devices: call ``module`` with inputs on ``input_device``, rows on dim 0.

    Outputs come on ``output_device``; ``devices`` are all that compute, the host included where it does.
    """

    module: nn.Module
    input_device: torch.device
    output_device: torch.device
    devices: tuple[torch.device, ...]
    gradient_sync: GradientSync = field(default_factory=GradientSync)


@dataclass(frozen=True)
class Needs:
    """What a strategy asks of its caller.

    ``devices``: True if without an accelerator (real or virtual) its wrapper does nothing.
    ``prediction``: True if the user's layout may mix devices, which must be found out before a run opens.
    ``compile``: False if its modules are made anew at every step, so that compiling them never ends.
    ``gradients``: True if every parameter that requires a gradient must get one in every step.
    """

    devices: bool
    prediction: bool = False
    compile: bool = True
    gradients: bool = False


class Strategy(ABC):
    """One layout. Made from the run's config; ``place`` takes the model over and rewires it."""

    name: ClassVar[str]
    needs: ClassVar[Needs]

    def __init__(self, config: RunConfig, group: ProcessGroup | None = None) -> None:
        self.config = config
        self.group = group or ProcessGroup()

    def configured(self, config: RunConfig) -> Strategy:
        """The same strategy with another config."""
        other = copy.copy(self)
        other.config = config
        return other

    def compiled(self, module: nn.Module) -> nn.Module:
        """The module, compiled in place where the run asks for it; it keeps its class and its names."""
        if self.config.compile:
            module.compile()
        return module

    def prepare(  # noqa: B027 - most strategies have nothing to refuse
        self, model: nn.Module, devices: Sequence[torch.device]
    ) -> None:
        """Check, before a run opens, that model and devices have what the strategy names.

        May set options on the model (sparse gradients).

        Raises ConfigError.
        """

    def unused(self, names: Sequence[str]) -> None:  # noqa: B027 - most strategies do not mind
        """Judge the parameters that get no gradient, where ``needs.gradients``. Raises ConfigError."""

    @abstractmethod
    def place(self, model: nn.Module, devices: Sequence[torch.device], timer: Timer) -> Placed:
        """Lay the model over the devices (none: the host alone), in place."""
