"""Single device: a step as a function of a state and a batch.

    state, batch      ->  outputs, loss, gradients, buffers
    state, gradients  ->  parameters, optimizer's state

Nothing else is carried from step to step: so nothing drifts, and every step can be computed again, rounded
otherwise by a ``draw``. It computes on the host, with no other rank in its process group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn

from dpexp import devices, tensors
from dpexp.data.batch import Batch
from dpexp.data.objective import Objective
from dpexp.data.rng import kept_globals, random_state, set_random_state
from dpexp.strategies.placed import Placed, StepEndedError
from dpexp.strategies.sync_batch_norm import on_one_device
from dpexp.training.optimizer_state import groups
from dpexp.training.optimizers import OptimizerFactory
from dpexp.training.preserve import is_users
from dpexp.training.trainer import Trainer
from dpexp.verification.alone import alone
from dpexp.verification.chunks import Chunked, Chunks
from dpexp.verification.compare import Tensors, relative_error
from dpexp.verification.mode import Mode, Switch
from dpexp.verification.model_copy import copied
from dpexp.verification.recorder import Recorder, Step, end_step
from dpexp.verification.rounding import ExactObserver, OtherwiseRounded
from dpexp.verification.state import State

Buffers: TypeAlias = list[dict[str, torch.Tensor]]
"""Of each chunk of rows, or of all rows."""


class SingleDevice:
    """It has the model, which it changes. ``chunks`` are those of a mode in chunks.

    ``autocast`` is the type of mixed precision, empty for none.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        optimizer: OptimizerFactory | None,
        autocast: str = "",
        chunks: Chunks | None = None,
        device: torch.device = devices.HOST,
    ) -> None:
        self.objective, self.chunks = objective.of(model), chunks or Chunks()
        placed = Placed(devices.place(on_one_device(model), device), device, device, (device,))
        with alone():  # an optimizer may ask for its ranks
            self.trainer = Trainer(placed, self.objective.on_one_device, optimizer, autocast)
        self._optimizer, self._autocast, self._module = optimizer, autocast, placed.module
        self._first = self._before = self._groups()
        self._switch = Switch(placed.module)
        self.mode = Mode()
        self._chunked: Chunked | None = None
        self._unsplit: list[tuple[nn.Module, str, nn.Module]] = []
        self._state: State | None = None
        self._from_own = False
        self._gradients: dict[str, torch.Tensor | None] = {}
        self.drew = False
        """Whether the latest step drew random numbers."""
        self.narrowest: torch.dtype | None = None
        """The shortest type in which what was computed last, and rounded otherwise, had numbers."""

    @property
    def dtype(self) -> torch.dtype:
        """Of its floating-point parameters, or else that of PyTorch."""
        return next(
            (p.dtype for p in self._module.parameters() if p.is_floating_point()), torch.get_default_dtype()
        )

    @property
    def wrote(self) -> dict[str, torch.Tensor]:
        """The parameters that the latest forward has changed: a table with ``max_norm``, say."""
        parameters = self.trainer.parameters().items()
        return _cloned({n: p.detach() for n, p in parameters if p._version != self._versions[n]})

    @property
    def has_stored_loss(self) -> bool:
        """Whether a method of the model is the loss, and the forward has stored a tensor for it."""
        stored = (value for module in self._module.modules() for value in vars(module).values())
        return self.objective.is_method and any(getattr(each, "grad_fn", None) is not None for each in stored)

    def again(
        self,
        dtype: torch.dtype | None = None,
        device: torch.device = devices.HOST,
        *,
        autocast: str | None = None,
    ) -> SingleDevice:
        """Another one of the same model as it is now: what it counts by itself is not counted here."""
        mode = self.mode
        self.set_mode(Mode())
        model = copied(self._module, dtype or self.dtype)
        self.set_mode(mode)
        autocast = self._autocast if autocast is None else autocast
        made = SingleDevice(model, self.objective, self._optimizer, autocast, self.chunks, device)
        made.set_mode(mode)
        made._gradients = self._gradients
        if made.trainer.optimizers is not None and self.trainer.optimizers is not None:
            made.trainer.optimizers.clip_norm = self.trainer.optimizers.clip_norm
            for member, before in zip(made.trainer.optimizers.members, self._before, strict=True):
                for group, kept in zip(member.param_groups, before, strict=True):
                    group.update(kept)
        return made

    def set_mode(self, mode: Mode) -> None:
        """Put the modules of a mode into eval mode, and others into their own; split rows only in chunks.

        A model may see what wraps its parts: what computes a batch as one has no wrappers.
        """
        self.mode = mode
        self._switch.set(mode.quiet)
        for owner, key, part in reversed(self._unsplit):
            owner._modules[key] = part
        self._unsplit, self._chunked, module = [], None, self._module
        if mode.in_chunks:
            self._chunked, self._unsplit = self.chunks.split(module, self._begin)
        self.trainer.placed.module = self._chunked or module

    def _begin(self, chunk: int) -> None:
        """Each chunk begins with the random numbers, and maybe with the buffers, of its rank."""
        state = self._state
        if state is None:
            return
        self._look_for_draws()
        set_random_state(state.random[chunk])
        self._since = random_state()
        if self._from_own:
            for name, buffer in self.trainer.buffers().items():
                if name in state.buffers[chunk] and state.buffers[chunk][name].shape == buffer.shape:
                    buffer.copy_(state.buffers[chunk][name])

    # --- a step ---

    def step(
        self,
        state: State,
        batch: Batch,
        draw: int | None = None,
        *,
        hooks: bool = False,
        from_own: bool = False,
    ) -> tuple[Step, Buffers]:
        """What a step computes before its optimizer, and the buffers after it.

        ``from_own``: each rank's chunk begins with its own buffers, not with those of the first.
        """
        self._load(state)
        self._from_own = from_own
        recorder = Recorder(self.trainer, True, end_step, with_loss=True)
        with kept_globals(), recorder.hooks(order=True) if hooks else nullcontext():
            set_random_state(state.random[0])
            with self._computing(draw), suppress(StepEndedError):
                self.trainer.step(in_dtype(batch, self.dtype), ExactObserver(recorder))
        self._gradients = {name: each.grad for name, each in self.trainer.parameters().items()}
        buffers = [self.trainer.buffers()] if self._chunked is None else self._chunked.buffers_after
        return recorder.step, [{name: each.cpu().clone() for name, each in of.items()} for of in buffers]

    def update(self, state: State, gradients: Tensors, draw: int | None = None) -> dict[str, Any]:
        """What the optimizer makes of these gradients: parameters, additions to each, numbers, buffers."""
        self._load(state)
        self._before = self._groups()
        for name, parameter in self.trainer.parameters().items():
            parameter.grad = _like(gradients.get(name), parameter, self._gradients.get(name))
        assert self.trainer.optimizers is not None
        self.trainer.optimizers.write_attributes(state.attributes)
        with self._computing(draw):
            self.trainer.update()
        after: dict[str, Any] = {"parameters": _cloned(self.trainer.full_parameters())}
        after["added"] = {name: _additions(each) for name, each in self._gradients.items()}
        state = State.of(self.trainer, self.objective)
        after["optimizer"] = self.followed(state.optimizer_numbers())
        after["buffers"] = state.buffers[0]
        return after

    def followed(self, numbers: Tensors) -> dict[str, torch.Tensor]:
        """Of the numbers of optimizers those that its own follow: not the settings of groups that stay."""
        members = self.trainer.optimizers.members if self.trainer.optimizers is not None else []
        changed, number = set[str](), 0
        for member, first in zip(members, self._first, strict=True):
            for group, at_first in zip(member.param_groups, first, strict=True):
                changed |= {f"group {number}: {key}" for key in _changed(member, group, at_first)}
                number += 1
        return {
            name: each for name, each in numbers.items() if not name.startswith("group ") or name in changed
        }

    def evaluate(self, state: State, batch: Batch, draw: int | None = None, *, hooks: bool = False) -> Step:
        """The outputs of a batch in eval mode, without gradients."""
        self._load(state)
        recorder = Recorder(self.trainer, True, lambda: None)
        with kept_globals(), recorder.hooks() if hooks else nullcontext(), self._computing(draw):
            outputs = self.trainer.evaluate(in_dtype(batch, self.dtype))
        recorder.forward_ended(outputs)
        self.set_mode(self.mode)  # an evaluation leaves every module in training mode
        return recorder.step

    def apart_from_itself(self, state: State, batch: Batch, *, in_eval_mode: bool) -> float:
        """How far the outputs of a step are from those of the same step after another one.

        All but 0 where they depend on more than the state. A number that a module counts is no cause of it.
        """
        parts = [part for part in self._module.modules() if is_users(part)]
        counted = [{k: v for k, v in vars(part).items() if type(v) in (int, float)} for part in parts]

        def outputs(batch: Batch) -> Tensors:
            made = self.evaluate(state, batch) if in_eval_mode else self.step(state, batch)[0]
            for part, before in zip(parts, counted, strict=True):
                vars(part).update(before)
            return made.outputs

        before, _ = outputs(batch), outputs(batch.chosen([0] * batch.rows))
        return relative_error(outputs(batch), before)

    def gradients(self, batch: Batch) -> Tensors:
        """Of the loss of this batch alone, from the latest state."""
        assert self._state is not None
        step, _ = self.step(self._state.without_gradients(), batch)
        return step.gradients

    def release(self) -> None:
        """Drop what the latest step has left in memory beside the model."""
        if self._state is not None:
            self._load(replace(self._state, optimizer={}, gradients={}))
        self._state, self._gradients = None, {}

    @contextmanager
    def _computing(self, draw: int | None) -> Iterator[None]:
        self.drew, self._since = False, random_state()
        rounded = None if draw is None else OtherwiseRounded(draw)
        with alone(), rounded or nullcontext():
            yield
        self.narrowest = rounded.narrowest if rounded is not None else None
        self._look_for_draws()

    def _look_for_draws(self) -> None:
        self.drew = self.drew or self._since != random_state()

    def _load(self, state: State) -> None:
        self._state = state
        with torch.no_grad():
            state.load(self.trainer)
        self._versions = {name: each._version for name, each in self.trainer.parameters().items()}
        self._follow_groups(state)
        self.objective.follow(state.objective, self.trainer.placed.output_device)

    def _follow_groups(self, state: State) -> None:
        """Load of the optimizers' groups what their steps may change."""
        members = self.trainer.optimizers.members if self.trainer.optimizers is not None else []
        for member, now, first in zip(members, state.groups, self._first, strict=False):
            for group, of_layout, at_first in zip(member.param_groups, now, first, strict=False):
                changed = _changed(member, group, at_first)
                group.update({key: value for key, value in of_layout.items() if key in changed})

    def _groups(self) -> Any:
        return groups(self.trainer.optimizers) if self.trainer.optimizers is not None else []


def in_dtype(batch: Batch, dtype: torch.dtype) -> Batch:
    """The batch in memory of its own, with floating-point inputs and targets of this type."""
    return batch.copied().changed(partial(tensors.cast, dtype=dtype))


def _cloned(values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: each.cpu().clone() for name, each in values.items()}


def _changed(member: torch.optim.Optimizer, group: Mapping[str, Any], first: Mapping[str, Any]) -> set[str]:
    """The settings of a group that the optimizer's steps may change.

    All of an optimizer that a user wrote or that has a schedule, which may change them at some later step.
    """
    if "initial_lr" in group or not type(member).__module__.startswith(("torch.", "dpexp.")):
        return {*first}
    return {key for key, value in first.items() if _leaves(group[key]) != _leaves(value)}


def _leaves(value: Any) -> list[Any]:
    """What can be compared of a value that may contain arrays and tensors."""
    return [
        (path, leaf.tolist() if hasattr(leaf, "tolist") else leaf) for path, leaf in tensors.leaves(value)
    ]


def _additions(gradient: torch.Tensor | None) -> int:
    """How often an optimizer may add to a row: as often as a sparse gradient has it."""
    if gradient is None or not gradient.is_sparse or not gradient._nnz():
        return 1
    return int(torch.bincount(gradient._indices()[0]).max())


def _like(
    value: torch.Tensor | None, parameter: nn.Parameter, before: torch.Tensor | None
) -> torch.Tensor | None:
    """A gradient for the parameter, as sparse as its own was."""
    if value is None:
        return None
    value = value.to(parameter.device, parameter.dtype, copy=True)
    if before is None or before.is_sparse == value.is_sparse:
        return value
    if value.is_sparse:
        return value.to_dense()
    rows = before.coalesce().indices()
    return torch.sparse_coo_tensor(rows, value[rows[0]], before.shape, check_invariants=False)
