"""Placed: a model laid out across devices, and its step, which every pass of a run takes.

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

Nothing else takes a step of a placed model. A layout that interleaves forward and backward, as a pipeline
does, overrides ``step`` and keeps the order of the observer's calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from dpexp import devices, tensors
from dpexp.data.batch import Batch
from dpexp.devices import HOST
from dpexp.distributed.world import dimensions_of
from dpexp.timing import Timer

Loss = Callable[[Any, Any], torch.Tensor]
"""From outputs and targets to a scalar."""

_NO_CONTEXT: AbstractContextManager[None] = nullcontext()


class StepEndedError(Exception):
    """Raised by an observer that needs no more of a step."""


class StepObserver:
    """Gets what a step has computed, as soon as it has; this one ignores it."""

    def forward_ended(self, outputs: Any) -> None:
        """``outputs`` of the module, on the output device; its rows are this rank's."""

    def loss_ended(self, loss: torch.Tensor) -> None:
        """``loss`` is a scalar of this rank's rows, still attached to its graph."""

    def backward_ended(self) -> None:
        """Every parameter has the gradient of the global batch; the optimizer has not used it."""


UNOBSERVED = StepObserver()


@dataclass(eq=False)
class Placed:
    """A model laid out across devices: call ``module`` with inputs on ``input_device``, rows on dim 0.

    Outputs are on ``output_device``; ``devices`` are all that compute, the host included where it does.
    ``is_opaque``: a user's code laid it out, and no wrapper says how it splits rows or what ranks send.
    ``timer`` is that of the module's wrappers; ``forward_phase`` is empty where they time the forward.
    """

    module: nn.Module
    input_device: torch.device = HOST
    output_device: torch.device = HOST
    devices: tuple[torch.device, ...] = (HOST,)
    gradient_sync: GradientSync = field(default_factory=lambda: GradientSync())
    shards: Shards = field(default_factory=lambda: Shards())
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

    def _moved(self, value: Any, device: torch.device) -> Any:
        """``value`` on the device; what a batch holds is on the host."""
        if devices.physical(device) == HOST:
            return value
        with self.timer.phase("transfer", device):
            return devices.move(value, device)

    @property
    def is_on_host(self) -> bool:
        """Whether all devices that compute are the host, or emulated on it."""
        return all(devices.physical(device) == HOST for device in self.devices)

    @property
    def outputs_on_host(self) -> bool:
        """Whether outputs and loss are in the host's memory, so that reading them waits for nothing."""
        return devices.physical(self.output_device) == HOST


class GradientSync:
    """How gradients come together: autograd adds up those of a process, the layout averages those of ranks.

    ``dp_size`` is the number of parts into which ranks split the rows; 0 where no rank has the others. A
    rank's loss is weighted, by its rows say, so that the average over the parts is the mean over all rows.
    """

    def __init__(self, dp_size: int = 0) -> None:
        self.dp_size = dp_size

    def weighted(self, loss: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The loss whose gradients the ranks average, a scalar as ``loss`` is."""
        weight = batch.weight * self.dp_size if self.dp_size else 1
        return loss if weight == 1 else loss * weight

    def backward(self, loss: torch.Tensor, batch: Batch) -> None:
        """Give every local parameter the gradient of the mean loss over the rows of the global batch.

        ``loss`` is a scalar, of the rows of this rank. It may communicate: every rank must call it.
        """
        self.weighted(loss, batch).backward()  # type: ignore[no-untyped-call]


class Shards:
    """What a process has of each parameter, and how full tensors are read and written.

    A parameter may be a ``DTensor``, of which each rank has a shard; here all others are full on every rank.
    A ``name`` is that of a parameter in the model as written. A ``tensor`` is the parameter, its gradient, or
    what an optimizer keeps of it in the same shape. ``full_shapes`` are the shapes of full tensors by name,
    where they are not those of the parameters. ``units`` are the modules with which FSDP gathers parameters,
    by the parameter's name. The methods may communicate: every rank must call them in the same order.
    """

    full_shapes: Mapping[str, torch.Size] = MappingProxyType({})
    units: Mapping[str, str] = MappingProxyType({})

    def full_tensor(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in its full shape, as in DTensor, of which this process has a shard."""
        return _full(tensor.detach())

    def load_full_tensor(self, name: str, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Write ``value``, of the full shape, or this process's shard of it, to ``tensor``."""
        to: Any = tensor.detach()
        if hasattr(to, "placements"):
            from torch.distributed.tensor import distribute_tensor  # which takes long to import

            value, mesh = value.to(to.device), to.device_mesh
            # every rank has the value, and needs no other's
            sharded: Any = distribute_tensor(value, mesh, to.placements, src_data_rank=None)
            to, value = to.to_local(), sharded.to_local()
        to.copy_(value)

    def norm(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """The norm of a full gradient, as a scalar."""
        return _full(tensors.norm(gradient))

    def total_norm(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The norm of the full gradients together, as a scalar on the device of the first."""
        norms = [self.norm(name, gradient) for name, gradient in gradients.items()]
        return tensors.norm(torch.stack([norm.to(norms[0].device) for norm in norms]))


def _full(tensor: Any) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "placements") else tensor  # type: ignore[no-any-return]


def full_output(tensor: Any) -> torch.Tensor:
    """The rows of this rank (rows, …), as a plain tensor; every rank that has a part of it must call this.

    A DTensor is gathered along the dimensions of its mesh that split no rows. What functional collectives
    return has arrived: PyTorch waits only where an operator reads it, and neither a view nor a pickle does.
    """
    if hasattr(tensor, "placements"):
        from torch.distributed.tensor import Replicate  # which takes long to import

        kept = [
            placement if dimension.splits_rows else Replicate()
            for dimension, placement in zip(dimensions_of(tensor.device_mesh), tensor.placements, strict=True)
        ]
        tensor = tensor.redistribute(placements=kept).to_local()
    if hasattr(tensor, "trigger_wait"):
        arrived = tensor.trigger_wait()
        tensor = tensor if tensor.requires_grad else arrived  # which is in no graph
    return tensor  # type: ignore[no-any-return]
