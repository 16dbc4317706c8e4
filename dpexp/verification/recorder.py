"""Recorder: what a step computed before its optimizer, and a step that ends there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn

from dpexp import devices, tensors
from dpexp.config.process import rarer_garbage_collection
from dpexp.data.batch import Batch
from dpexp.data.objective import Objective
from dpexp.strategies.module_calls import ModuleCall, module_calls
from dpexp.strategies.placed import StepEndedError, StepObserver
from dpexp.training.trainer import Trainer
from dpexp.verification.compare import Parts, Tensors, magnitude, parts_of

Calls: TypeAlias = dict[tuple[str, int], dict[int, list[list[torch.Tensor]]]]
"""Outputs of each call, by name and number of wrappers around it, and by replica (-1 outside of them)."""


@dataclass(frozen=True)
class Step:
    """What one step computed, before its optimizer; tensors are detached and may be in place of the model's.

    Outputs (rows, ...) and gradients, of the full tensors, are on the host; floating-point ones in float64 or
    complex128, so that integers stay exact.
    ``eps`` has the last bit of the type in which each output, and the loss (``None``), was computed.
    ``modules`` are the calls in the order in which they returned, ``order`` the parameters in the order in
    which backward finished their gradients.

    Of a single device: ``buffers`` after all rows, or after each chunk of them; whether it ``drew`` random
    numbers; the parameters to which its forward ``wrote``, as to a table with ``max_norm``; how many
    ``additions`` a row of a gradient has; whether the forward ``stores`` a tensor for the loss, and the
    ``objective`` that knows what the forward returns.
    """

    outputs: Tensors = field(default_factory=dict)
    loss: float | None = None
    gradients: Tensors = field(default_factory=dict)
    eps: Mapping[str | None, float] = field(default_factory=dict)
    calls: Calls = field(default_factory=dict)
    modules: list[tuple[str, int]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    buffers: Sequence[Tensors] = ()
    drew: bool = False
    wrote: Tensors = field(default_factory=dict)
    additions: Mapping[str, int] = field(default_factory=dict)
    stores: bool = False
    objective: Objective = field(default_factory=Objective)


@dataclass(frozen=True)
class Computed:
    """What a step has computed before its optimizer, and the buffers that it leaves."""

    step: Step
    buffers: Tensors

    def apart(self, wanted: Computed, *, gradients: bool = True) -> dict[str, dict[str, Parts]]:
        """How far this is from what is wanted, which says which buffers count.

        A gradient that is not computed at all is not rounding, however small it is.
        """
        found, expected = self.step, wanted.step
        shared = {name: self.buffers[name] for name in wanted.buffers if name in self.buffers}
        kinds = {
            "outputs": parts_of(found.outputs, expected.outputs),
            "loss": parts_of(_scalar(found.loss), _scalar(expected.loss)),
        }
        if gradients:
            missing = [
                n for n, g in expected.gradients.items() if n not in found.gradients and magnitude(g) > 0
            ]
            kinds["gradients"] = parts_of(found.gradients, expected.gradients)
            kinds["gradients"] |= {name: Parts([0.0], [math.inf]) for name in missing}
        return kinds | {"buffers": parts_of(shared, wanted.buffers)}


class Recorder(StepObserver):
    """Records one step of a trainer into ``step``, and calls ``then`` once it is complete.

    Without an optimizer it ends the step after its forward: only outputs are compared then; ``with_loss`` the
    loss as well, and the step goes on.
    ``has_rows`` is False for a rank without rows, whose outputs are a stand-in's. The calls of modules and
    the order of gradients are recorded inside ``hooks`` only.
    """

    def __init__(
        self, trainer: Trainer, has_rows: bool, then: Callable[[], None], with_loss: bool = False
    ) -> None:
        self.step, self.is_complete, self._with_loss = Step(), False, with_loss
        self._trainer, self._has_rows, self._then = trainer, has_rows, then

    def forward_ended(self, outputs: Any) -> None:
        """Record the outputs, (rows, ...) each. Raises StepEndedError where only these are compared."""
        if self._has_rows:
            leaves = {path: leaf for path, leaf in tensors.leaves(outputs) if isinstance(leaf, torch.Tensor)}
            outputs = {path: widened(leaf) for path, leaf in leaves.items()}
            eps: dict[str | None, float] = {path: _eps(leaf) for path, leaf in leaves.items()}
            self.step = replace(self.step, outputs=outputs, eps={**self.step.eps, **eps})
        if self._trainer.optimizers is None and not self._with_loss:
            self._end()
            raise StepEndedError

    def loss_ended(self, loss: torch.Tensor) -> None:
        """Record the loss, a scalar."""
        eps = {**self.step.eps, None: _eps(loss)}
        self.step = replace(self.step, loss=float(loss.detach()), eps=eps)
        if self._trainer.optimizers is None:
            self._end()

    def backward_ended(self) -> None:
        """Record the full gradients; every rank must call this."""
        full = self._trainer.placed.shards.full_tensor
        gradients = {
            name: widened(full(name, parameter.grad))
            for name, parameter in self._trainer.parameters().items()
            if parameter.grad is not None
        }
        self.step = replace(self.step, gradients=gradients)
        self._end()

    def _end(self) -> None:
        self.is_complete = True
        then, self._then = self._then, lambda: None  # which may refer to this recorder, and so keep the step
        then()

    @contextmanager
    def hooks(self, order: bool = False) -> Iterator[None]:
        """Inside, record the outputs of every module; with ``order``, also that of the gradients."""
        parameters = self._trainer.parameters() if order else {}
        finished = [
            parameter.register_post_accumulate_grad_hook(partial(_append, self.step.order, name))  # type: ignore[no-untyped-call]
            for name, parameter in parameters.items()
            if parameter.requires_grad
        ]
        try:
            with module_calls(self._trainer.placed.module, left=self._add_call):
                yield
        finally:
            for handle in finished:
                handle.remove()

    def _add_call(self, call: ModuleCall) -> None:
        outputs = [_unwrapped(tensor).detach() for tensor in tensors.walk(call.outputs)]
        key, replica = (call.name, call.level), -1 if call.replica is None else call.replica
        self.step.calls.setdefault(key, {}).setdefault(replica, []).append(outputs)
        self.step.modules.append(key)


def fewer_collections(model: nn.Module) -> AbstractContextManager[None]:
    """Inside, garbage is searched for some times per step: what is recorded grows with the model."""
    return rarer_garbage_collection(4 * sum(1 for _ in model.modules()))


def computed(trainer: Trainer, batch: Batch) -> Step:
    """What a step on the batch computes, without the optimizer's part; gradients stay in the parameters."""
    recorder = Recorder(trainer, bool(batch.rows), end_step)
    with suppress(StepEndedError):
        trainer.step(batch, recorder)
    return recorder.step


def end_step() -> None:
    """End a step before its optimizer: raises StepEndedError."""
    raise StepEndedError


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, where a module is called inside of a transform of ``torch.func``."""
    return tensor if torch.compiler.is_compiling() else torch.func.debug_unwrap(tensor)


def _scalar(value: float | None) -> Tensors:
    return {} if value is None else {"": torch.tensor(value, dtype=torch.float64)}


def _append(names: list[str], name: str, _: torch.Tensor) -> None:
    names.append(name)


def _eps(tensor: torch.Tensor) -> float:
    """The last bit of a number of this type; 0 for integers."""
    is_exact = not (tensor.is_floating_point() or tensor.is_complex())
    return 0.0 if is_exact else torch.finfo(tensor.dtype).eps


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on the host in its shape, detached; in float64 or complex128 unless it has integers."""
    wide = tensor.detach().to(devices.HOST)  # copied below: clipping changes gradients in place
    if wide.is_complex() or wide.is_floating_point():
        wide = wide.to(torch.complex128 if wide.is_complex() else torch.float64, copy=True)
    return wide.coalesce() if wide.is_sparse else wide
