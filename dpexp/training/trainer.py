"""Trainer: takes the steps of a placed model, and has the state that the next step depends on.

The step itself is ``Placed.step``. A trainer adds what stays the same from step to step: the loss, the
optimizers and mixed precision. Runs train with one; verification steps two of them side by side.
"""

from typing import Any

import torch
from torch import nn

from dpexp import devices, tensors
from dpexp.data.batch import Batch
from dpexp.distributed.group import ProcessGroup
from dpexp.strategies.modules import named_buffers, named_parameters
from dpexp.strategies.placed import UNOBSERVED, Loss, Placed, StepObserver
from dpexp.training.optimizer_state import full_state
from dpexp.training.optimizers import OptimizerFactory


class Trainer:
    """A placed model with its loss and optimizers; without an ``optimizer`` it computes in eval mode.

    ``autocast`` is the dtype of mixed precision, empty for none. ``must_train``: a step that gives no
    parameter a gradient is an error.
    """

    def __init__(
        self,
        placed: Placed,
        loss: Loss,
        optimizer: OptimizerFactory | None,
        autocast: str = "",
        group: ProcessGroup | None = None,
        must_train: bool = False,
    ) -> None:
        self.placed, self.loss, self._must_train = placed, loss, must_train
        self.group = group or ProcessGroup()
        self.optimizers = optimizer.of(placed) if optimizer is not None else None
        self._autocast = devices.autocast(placed.output_device, autocast)
        self._trained = [tensor for tensor in placed.module.parameters() if tensor.requires_grad]
        if optimizer is None:
            placed.module.eval()
        self._update = self.update if self.optimizers is not None else None

    def step(self, batch: Batch, observer: StepObserver = UNOBSERVED) -> torch.Tensor:
        """Compute one batch and train on it. Returns the loss of its rows, a scalar on the output device."""
        return self.placed.step(batch, self.loss, self._update, self._autocast, observer)

    def update(self) -> None:
        """The optimizers' step, unless they are to accumulate further gradients.

        Raises RuntimeError where it would train nothing.
        """
        assert self.optimizers is not None
        if self._must_train and all(parameter.grad is None for parameter in self._trained):
            raise RuntimeError("no parameter that the optimizer has got a gradient: it would train nothing")
        if self.optimizers.step():
            self.clear()

    def clear(self) -> None:
        """Remove all gradients; ``zero_grad`` does the same, and opens a profiler's span around it."""
        for parameter in self._trained:
            parameter.grad = None

    def evaluate(self, batch: Batch) -> Any:
        """The outputs of one batch in eval mode, without autocast.

        A forward that computes gradients itself needs a graph, and gets one where it fails without.
        """
        module, inputs = self.placed.module, devices.move(batch.inputs, self.placed.input_device)
        training = module.training
        module.eval()
        try:
            with torch.no_grad():
                return module(*inputs)
        except RuntimeError as error:
            if "does not require grad" not in str(error):
                raise
            with torch.enable_grad():
                return tensors.map_tensors(torch.Tensor.detach, module(*inputs))
        finally:
            module.train(training)

    # --- state: every rank calls these methods in the same order ---

    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that this process has, by their names in the model as written."""
        return named_parameters(self.placed.module)

    def buffers(self) -> dict[str, torch.Tensor]:
        """The buffers by name in the model as written, each in its shape and on its device."""
        return named_buffers(self.placed.module)

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """The tensor, in its full shape, of each parameter that this process has a part of, by name."""
        full = self.placed.shards.full_tensor
        return {name: full(name, parameter) for name, parameter in self.parameters().items()}

    def optimizer_state(self) -> dict[str, dict[str, Any]]:
        """What the optimizers keep of each parameter that this process has a part of, on the host."""
        return full_state(self.optimizers.states(), self.placed.shards) if self.optimizers is not None else {}

    def complete_parameters(self) -> dict[str, torch.Tensor]:
        """The parameters of all ranks by name, in their full shapes, on the host."""
        on_host = {name: tensor.cpu() for name, tensor in self.full_parameters().items()}
        return self.group.complete(on_host)
