"""Trainer: one step of training, and the state that the next step depends on.

step:  move the batch -> forward -> loss -> backward with gradient sync -> optimizer
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing
from itertools import islice
from typing import Any

import torch
from torch import nn

from dpexp import devices
from dpexp.data.batch import Batch
from dpexp.engine.prepare import Prepared
from dpexp.strategies.base import Placed
from dpexp.strategies.wrappers import Forward, named_buffers, named_parameters
from dpexp.timing import Timer
from dpexp.training.optimizer_state import full_state, groups, load_full_state, load_groups
from dpexp.training.optimizers import Optimizers, RunOptimizer

Phase = Callable[[str, torch.device], AbstractContextManager[None]]


class Trainer:
    """A placed model and its optimizers; with ``--eval`` it has none."""

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
        self.optimizers = None if config.eval else RunOptimizer(config, config.accumulate).of(placed)
        placed.module.train(not config.eval)
        devices.reset_peak_memory(placed.devices)

    def step(self, batch: Batch) -> torch.Tensor:
        """Compute one batch, and train on it unless ``--eval``. Returns the loss, on its device."""
        sync = self.placed.gradient_sync
        if self.optimizers is None:
            with torch.no_grad():
                outputs = self._outputs(batch, self._untimed)
                with sync.computing(batch):
                    return self._loss(outputs, batch)
        outputs = self._outputs(batch, self._untimed)
        with sync.computing(batch):
            loss = self._loss(outputs, batch)
            sync.backward(loss, batch)
            self._update(self.optimizers)
        return loss if self.outputs_on_host else loss.detach()

    def restart(self) -> None:
        """Begin to accumulate gradients again, at the first measured step."""
        if self.optimizers is not None:
            self.optimizers.restart()

    def take_steps(self, count: int) -> None:
        """Train on the first ``count`` batches."""
        with self.ahead(islice(self.prepared.endless_batches(), count)) as batches:
            for batch in batches:
                self.step(batch)

    def ahead(self, batches: Iterator[Batch]) -> closing[Generator[Batch]]:
        """The batches, for a loop with a step of each; the layout may look up those after the current one."""
        return closing(self.placed.prefetch.ahead(batches))

    def timed_step(self, batch: Batch, phase: Phase | None = None) -> None:
        """The same step, phase by phase. The wrappers of the layout time the phases of the forward.

        ``phase`` replaces the timer's for loss, backward and optimizer.
        """
        device, phase, sync = self.placed.output_device, phase or self.timer.phase, self.placed.gradient_sync
        with torch.set_grad_enabled(self.optimizers is not None):
            outputs = self._outputs(batch, self.placed.module)
            with sync.computing(batch), phase("loss", device):
                loss = self._loss(outputs, batch)
        if self.optimizers is None:
            return
        with sync.computing(batch), phase("backward", device):
            sync.backward(loss, batch)
        with sync.computing(batch), phase("optimizer", device):
            self._update(self.optimizers)

    def evaluate(self, batch: Batch) -> Any:
        """The outputs of one batch in eval mode, without autocast."""
        module = self.placed.module
        training = module.training
        module.eval()
        with torch.no_grad():
            outputs = module(*devices.move(batch.inputs, self.placed.input_device))
        module.train(training)
        return outputs

    def _update(self, optimizers: Optimizers) -> None:
        if all(parameter.grad is None for parameter in self._parameters):
            raise RuntimeError("no parameter that the optimizer has got a gradient: it would train nothing")
        if not optimizers.step():
            return
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
        with self._autocast:
            return self.prepared.data.loss(outputs, targets)

    def _transfer(self, value: Any, device: torch.device) -> Any:
        with self.timer.phase("transfer", device):
            return devices.move(value, device)

    # --- state: every rank calls these methods in the same order ---

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """The full tensor of each parameter, on the host, by its name in the model as written."""
        full_tensor = self.placed.shards.full_tensor
        parameters = named_parameters(self.placed.module)
        full = {name: full_tensor(name, parameter).cpu() for name, parameter in parameters.items()}
        return self.prepared.group.complete(full)

    def buffers(self) -> dict[str, torch.Tensor]:
        """The buffers, on their devices, by their names in the model as written."""
        return named_buffers(self.placed.module)

    def state_dict(self) -> dict[str, Any]:
        """The state of all ranks: full parameters and optimizers' state, buffers, random generators."""
        return {
            **self._optimizer_state(),
            "parameters": self.full_parameters(),
            "buffers": {name: buffer.cpu() for name, buffer in self.buffers().items()},
            "random": self.prepared.group.all_gather(devices.rng_states(self.placed.devices)),
        }

    def _optimizer_state(self) -> dict[str, Any]:
        if self.optimizers is None:
            return {}
        state = full_state(self.optimizers, self.placed.shards)
        return {"optimizer": self.prepared.group.complete(state), "groups": groups(self.optimizers)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned, in a group of any size. Additional ranks reuse random states.

        Older snapshots have no optimizer: it was SGD, which keeps nothing.
        """
        if self.optimizers is not None:
            self.optimizers.make_state()
        for name, parameter in named_parameters(self.placed.module).items():
            self.placed.shards.load_full_tensor(name, parameter, state["parameters"][name])
        for name, buffer in self.buffers().items():
            buffer.copy_(state["buffers"][name])
        if self.optimizers is not None and "optimizer" in state:
            load_full_state(self.optimizers, self.placed.shards, state["optimizer"])
            load_groups(self.optimizers, state["groups"])
        random = state["random"]
        devices.set_rng_states(self.placed.devices, random[self.prepared.group.rank % len(random)])
