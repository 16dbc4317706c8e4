"""Trainer: one step of training, and the state that the next step depends on.

step:  move the batch -> forward -> loss -> backward with gradient sync -> optimizer
"""

from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from torch import nn

from dpexp import devices
from dpexp.config import RunConfig
from dpexp.data.dataset import Batch
from dpexp.engine.prepare import Prepared
from dpexp.strategies import Placed
from dpexp.strategies.wrappers import Forward, named_buffers, named_parameters
from dpexp.timing import Timer


def sgd(config: RunConfig) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    """The run's optimizer, for some parameters."""
    # SGD without momentum has no state: that of any other optimizer belongs into Trainer.state_dict
    return lambda parameters: torch.optim.SGD(parameters, lr=config.lr)


class Trainer:
    """A placed model and its optimizer, which ``--eval`` has not."""

    def __init__(self, prepared: Prepared, placed: Placed, timer: Timer) -> None:
        config = prepared.config
        self.prepared = prepared
        self.placed = placed
        self.timer = timer
        self.outputs_on_host = devices.physical(placed.output_device) == devices.HOST
        self._inputs_on_host = devices.physical(placed.input_device) == devices.HOST
        # Forward only times the module that it wraps
        self._untimed = placed.module.module if isinstance(placed.module, Forward) else placed.module
        self._autocast = devices.autocast(placed.output_device, config.autocast)
        self._parameters = [tensor for tensor in placed.module.parameters() if tensor.requires_grad]
        self._optimizer = None if config.eval else sgd(config)(self._parameters)
        placed.module.train(not config.eval)
        devices.reset_peak_memory(placed.devices)

    def step(self, batch: Batch) -> torch.Tensor:
        """Compute one batch, and train on it unless ``--eval``. Returns the loss, on its device."""
        if self._optimizer is None:
            with torch.no_grad():
                return self._loss(self._outputs(batch, self._untimed), batch)
        loss = self._loss(self._outputs(batch, self._untimed), batch)
        self.placed.gradient_sync.backward(loss, batch)
        self._update(self._optimizer)
        return loss if self.outputs_on_host else loss.detach()

    def take_steps(self, count: int) -> None:
        """Train on the first ``count`` batches."""
        for batch in islice(self.prepared.endless_batches(), count):
            self.step(batch)

    def timed_step(self, batch: Batch) -> None:
        """The same step, phase by phase. The wrappers of the layout time the phases of the forward."""
        device, phase = self.placed.output_device, self.timer.phase
        with torch.set_grad_enabled(self._optimizer is not None):
            outputs = self._outputs(batch, self.placed.module)
            with phase("loss", device):
                loss = self._loss(outputs, batch)
        if self._optimizer is None:
            return
        with phase("backward", device):
            self.placed.gradient_sync.backward(loss, batch)
        with phase("optimizer", device):
            self._update(self._optimizer)

    def evaluate(self, batch: Batch) -> Any:
        """The outputs of one batch in eval mode, without autocast."""
        module = self.placed.module
        training = module.training
        module.eval()
        with torch.no_grad():
            outputs = module(*devices.move(batch.inputs, self.placed.input_device))
        module.train(training)
        return outputs

    def _update(self, optimizer: torch.optim.Optimizer) -> None:
        if all(parameter.grad is None for parameter in self._parameters):
            raise RuntimeError("no parameter that the optimizer has got a gradient: it would train nothing")
        optimizer.step()
        for parameter in self._parameters:  # zero_grad does the same, and opens a profiler's span around it
            parameter.grad = None

    def _outputs(self, batch: Batch, module: nn.Module) -> Any:
        inputs = batch.inputs
        if not self._inputs_on_host:
            inputs = self._transfer(inputs, self.placed.input_device)
        with self._autocast:
            return module(*inputs)

    def _loss(self, outputs: Any, batch: Batch) -> torch.Tensor:
        targets = batch.targets
        if not self.outputs_on_host:
            targets = self._transfer(targets, self.placed.output_device)
        return self.prepared.data.loss(outputs, targets)

    def _transfer(self, value: Any, device: torch.device) -> Any:
        with self.timer.phase("transfer", device):
            return devices.move(value, device)

    # --- state: every rank calls these methods in the same order ---

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """The full tensor of each parameter, on the host, by its name in the model as written."""
        full_tensor = self.placed.gradient_sync.full_tensor
        parameters = named_parameters(self.placed.module)
        full = {name: full_tensor(name, parameter).cpu() for name, parameter in parameters.items()}
        return self.prepared.group.complete(full)

    def buffers(self) -> dict[str, torch.Tensor]:
        """The buffers, on their devices, by their names in the model as written."""
        return named_buffers(self.placed.module)

    def state_dict(self) -> dict[str, Any]:
        """The state of all ranks: full parameters, buffers, and each rank's states of random generators."""
        return {
            "parameters": self.full_parameters(),
            "buffers": {name: buffer.cpu() for name, buffer in self.buffers().items()},
            "random": self.prepared.group.all_gather(devices.rng_states(self.placed.devices)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned, in a group of any size. Additional ranks reuse random states."""
        for name, parameter in named_parameters(self.placed.module).items():
            self.placed.gradient_sync.load_full_tensor(name, parameter, state["parameters"][name])
        for name, buffer in self.buffers().items():
            buffer.copy_(state["buffers"][name])
        random = state["random"]
        devices.set_rng_states(self.placed.devices, random[self.prepared.group.rank % len(random)])
