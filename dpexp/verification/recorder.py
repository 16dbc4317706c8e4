"""Training: some steps of a placed model, and what each of them computed.

It is the trainer without timing: verification runs it on a layout and on a single device.
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn

from dpexp import devices, tensors
from dpexp.data.batch import Batch
from dpexp.strategies.base import Placed
from dpexp.strategies.wrappers import named_buffers, named_parameters, parts
from dpexp.training.optimizer_state import full_state
from dpexp.training.optimizers import Factory, RunOptimizer, make_optimizers

Loss: TypeAlias = Callable[[Any, Any], torch.Tensor]
OptimizerFactory: TypeAlias = Factory | RunOptimizer
Calls: TypeAlias = dict[tuple[str, int], dict[int, list[list[torch.Tensor]]]]
"""Outputs of each call, by name and number of wrappers around it, and by replica (-1 outside of them)."""


@dataclass
class Step:
    """What one step computed, before its optimizer; tensors are detached and may be in place of the model's.

    ``modules`` are the calls in the order in which they returned, ``written`` the parameters that the forward
    changed, ``order`` those of the gradients in the order in which backward finished them.
    """

    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    loss: float | None = None
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    calls: Calls = field(default_factory=dict)
    modules: list[tuple[str, int]] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    order: list[str] = field(default_factory=list)


class Training:
    """Forward, loss and backward with ``compute``, the optimizer's step with ``update``.

    Without an optimizer it is the forward in eval mode. A step has ``calls`` if it
    ``records`` them, and the order of gradients if it is the reference.
    """

    def __init__(
        self,
        placed: Placed,
        loss: Loss,
        optimizer: OptimizerFactory | None,
        dtype: torch.dtype,
        autocast: str = "",
        is_reference: bool = False,
        records: bool = True,
    ) -> None:
        self.placed, self.dtype, self.step = placed, dtype, Step()
        self._is_reference, self._records = is_reference, records
        self._loss, self._autocast = loss, autocast
        self.amplifies = isinstance(optimizer, RunOptimizer) and optimizer.amplifies
        self._optimizers = make_optimizers(optimizer, placed) if optimizer is not None else None
        if optimizer is None:
            placed.module.eval()

    def ahead(self, batches: Iterable[Batch]) -> Generator[Batch]:
        """The batches, for a loop with a step of each; the layout may look up those after the current one."""
        cast = (replace(each, inputs=tensors.cast(each.inputs, self.dtype)) for each in batches)
        return self.placed.prefetch.ahead(cast)

    def compute(self, batch: Batch) -> Step:
        """One batch. The gradients stay in the parameters until ``update`` or ``clear``.

        If the loss raises, ``step`` has the outputs.
        """
        placed, step, trains = self.placed, Step(), self._optimizers is not None
        self.step = step
        inputs, targets = tensors.cast((batch.inputs, batch.targets), self.dtype)
        with torch.set_grad_enabled(trains), self._recording(step):
            before = self._versions()
            with devices.autocast(placed.output_device, self._autocast):
                outputs = placed.module(*devices.move(inputs, placed.input_device))
            step.written = {name for name, version in self._versions().items() if version != before.get(name)}
            if batch.rows:  # else they are a stand-in's
                step.outputs = _named_outputs(outputs)
            if trains:
                sync = placed.gradient_sync
                with devices.autocast(placed.output_device, self._autocast), sync.computing(batch):
                    loss = self._loss(outputs, devices.move(targets, placed.output_device))
                step.loss = float(loss.detach())
                if loss.requires_grad:
                    with sync.computing(batch):
                        sync.backward(loss, batch)
        step.gradients = {
            name: _on_host(placed.shards.full_tensor(name, parameter.grad))
            for name, parameter in self.parameters().items()
            if parameter.grad is not None
        }
        return step

    def update(self) -> None:
        """The optimizer's step, unless it is to accumulate further gradients."""
        if self._optimizers is None or self._optimizers.step():
            self.clear()

    def clear(self) -> None:
        """Remove all gradients, and what the last step computed."""
        self.step = Step()
        for parameter in self.parameters().values():
            parameter.grad = None

    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that this process has, by their names in the model as written."""
        return named_parameters(self.placed.module)

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """The full parameters; every rank must call this."""
        full = self.placed.shards.full_tensor
        return {name: full(name, parameter) for name, parameter in self.parameters().items()}

    def buffers(self) -> dict[str, torch.Tensor]:
        """The buffers, by their names in the model as written."""
        return named_buffers(self.placed.module)

    def optimizer_state(self) -> dict[str, torch.Tensor]:
        """The numbers of the optimizer's state, as ``parameter: key``; every rank must call this."""
        if self._optimizers is None:
            return {}
        return {
            f"{name}: {key}": value if isinstance(value, torch.Tensor) else torch.tensor(float(value))
            for name, state in full_state(self._optimizers, self.placed.shards).items()
            for key, value in state.items()
            if isinstance(value, torch.Tensor | int | float)
        }

    def _versions(self) -> dict[str, int]:
        """A number for each parameter, which changes when something writes to it."""
        return {name: parameter._version for name, parameter in self.parameters().items()}

    def _recording(self, step: Step) -> ExitStack:
        """Hooks that keep the outputs of every module, and the order in which gradients are finished."""
        hooks, seen = ExitStack(), set()
        if not self._records:
            return hooks

        def leave(key: tuple[str, int], module: nn.Module, args: Any, outputs: Any) -> None:
            replica = devices.current_device()[1]
            found = [tensor.detach() for tensor in tensors.walk(outputs)]
            replicas = step.calls.setdefault(key, {})
            replicas.setdefault(-1 if replica is None else replica, []).append(found)
            step.modules.append(key)

        for part in parts(self.placed.module):
            if part.module not in seen:
                seen.add(part.module)
                key = (part.name, len(part.wrappers))
                hooks.enter_context(part.module.register_forward_hook(partial(leave, key)))
        for name, parameter in self.parameters().items():
            if self._is_reference and parameter.requires_grad:
                finished: Any = partial(_append, step.order, name)
                added = parameter.register_post_accumulate_grad_hook(finished)  # type: ignore[no-untyped-call]
                hooks.callback(added.remove)
        return hooks


def _append(names: list[str], name: str, _: torch.Tensor) -> None:
    names.append(name)


def _named_outputs(outputs: Any) -> dict[str, torch.Tensor]:
    leaves = tensors.leaves(outputs)
    return {path: _on_host(leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor)}


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().to(devices.HOST)
    wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
    return wide.coalesce() if wide.is_sparse else wide
