"""Placed: a model laid out across devices, and its step.

Verification, warm-up, measured and timed steps, profile and dry run all take this step. Who calls
whom::

    engine, verification, measurement
      Trainer.step(batch, observer)                   training/trainer.py    has loss and optimizers
        Placed.step(batch, loss, update, ...)         here
          input_device   <- batch.inputs              phase «transfer»
          module(*inputs)                             phase «forward», or those of the layout's wrappers
          observer.forward_ended(outputs)
          loss(outputs, targets)                      phase «loss»
          observer.loss_ended(loss)
          gradient_sync.backward(loss, batch)         phase «backward»
          observer.backward_ended()
          update()                                    phase «optimizer»

Timers and observers are around it or handed to it: nothing else takes a step of a placed model. A layout
that interleaves forward and backward overrides ``step`` and keeps the order of the observer's calls.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from dpexp import devices
from dpexp.data.batch import Batch
from dpexp.strategies.gradient_sync import GradientSync
from dpexp.strategies.shards import Shards
from dpexp.timing import Timer

Loss = Callable[[Any, Any], torch.Tensor]
"""From outputs and targets to a scalar."""

_NO_CONTEXT: AbstractContextManager[None] = nullcontext()


class StepEndedError(Exception):
    """Raised by an observer that needs no more of a step: nothing of the step comes after it."""


class StepObserver:
    """Gets what a step has computed, as soon as it has; this one ignores it."""

    def forward_ended(self, outputs: Any) -> None:
        """``outputs`` of the module, on the output device; its rows are this rank's."""

    def loss_ended(self, loss: torch.Tensor) -> None:
        """``loss`` is a scalar of this rank's rows, still attached to its graph."""

    def backward_ended(self) -> None:
        """Every parameter has the gradient of the global batch; the optimizer has not used it."""


UNOBSERVED = StepObserver()


@dataclass(frozen=True)
class Placed:
    """A model laid out across devices: call ``module`` with inputs on ``input_device``, rows on dim 0.

    Outputs are on ``output_device``; ``devices`` are all that compute, the host included where it does.
    ``gradient_sync`` says how gradients of ranks come together, ``shards`` what this rank has of each tensor.
    ``is_opaque``: a user's code laid it out, and no wrapper says how it splits rows or what ranks send.
    ``timer`` is that of the module's wrappers; ``forward_phase`` is empty where they time the forward.
    """

    module: nn.Module
    input_device: torch.device
    output_device: torch.device
    devices: tuple[torch.device, ...]
    gradient_sync: GradientSync = field(default_factory=GradientSync)
    shards: Shards = field(default_factory=Shards)
    is_opaque: bool = False
    timer: Timer = field(default_factory=Timer)
    forward_phase: str = "forward"

    def step(
        self,
        batch: Batch,
        loss: Loss,
        update: Callable[[], object] | None,
        autocast: AbstractContextManager[object] = _NO_CONTEXT,
        observer: StepObserver = UNOBSERVED,
    ) -> torch.Tensor:
        """Compute one batch and train on it with ``update``, the optimizer's step; without one compute only.

        A loss that depends on no parameter has no backward. Returns the loss of this rank's rows, a scalar on
        the output device. Raises what the model, the loss and the observer raise.
        """
        phase, device = self.timer.phase, self.output_device
        with torch.set_grad_enabled(update is not None):
            inputs = self._moved(batch.inputs, self.input_device)
            with autocast, phase(self.forward_phase) if self.forward_phase else _NO_CONTEXT:
                outputs = self.module(*inputs)
            observer.forward_ended(outputs)
            with self.gradient_sync.computing(batch):
                with phase("loss", device):
                    targets = self._moved(batch.targets, device)
                    with autocast:
                        value = loss(outputs, targets)
                observer.loss_ended(value)
                if update is None:
                    return value
                if value.requires_grad:
                    with phase("backward", device):
                        self.gradient_sync.backward(value, batch)
                observer.backward_ended()
                with phase("optimizer", device):
                    update()
        return value.detach()

    @property
    def is_on_host(self) -> bool:
        """Whether all devices that compute are the host, or emulated on it."""
        return all(devices.physical(device) == devices.HOST for device in self.devices)

    def _moved(self, value: Any, device: torch.device) -> Any:
        """``value`` on the device; what a batch holds is on the host."""
        if device in self._on_host:
            return value
        with self.timer.phase("transfer", device):
            return devices.move(value, device)

    @cached_property
    def _on_host(self) -> frozenset[torch.device]:
        """Those of input and output device that are the host, or emulated on it."""
        both = (self.input_device, self.output_device)
        return frozenset(device for device in both if devices.physical(device) == devices.HOST)

    @property
    def outputs_on_host(self) -> bool:
        """Whether outputs and loss are in the host's memory, so that reading them waits for nothing."""
        return self.output_device in self._on_host
