"""Strategy: how a model is laid over devices, and Placed: the model laid out."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from dpexp.config import RunConfig
from dpexp.timing import Timer


@dataclass(frozen=True)
class Placed:
    """A model laid over devices: call ``module`` with inputs on ``input_device``, rows on dim 0.

    Outputs come on ``output_device``; ``devices`` are all that compute, the host included where it does.
    """

    module: nn.Module
    input_device: torch.device
    output_device: torch.device
    devices: tuple[torch.device, ...]


@dataclass(frozen=True)
class Needs:
    """What a strategy asks of its caller.

    ``devices``: True if without an accelerator (real or virtual) its wrapper does nothing.
    ``prediction``: True if the user's layout may mix devices, which must be found out before a run opens.
    ``compile``: False if its modules are made anew at every step, so that compiling them never ends.
    """

    devices: bool
    prediction: bool = False
    compile: bool = True


class Strategy(ABC):
    """One layout. Made from the run's config; ``place`` takes the model over and rewires it."""

    name: ClassVar[str]
    needs: ClassVar[Needs]

    def __init__(self, config: RunConfig) -> None:
        self.config = config

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

    @abstractmethod
    def place(self, model: nn.Module, devices: Sequence[torch.device], timer: Timer) -> Placed:
        """Lay the model over the devices (none: the host alone), in place."""
