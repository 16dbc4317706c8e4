"""Single device: a step as a function of a state and a batch.

    state, batch      ->  Step      outputs, loss, gradients, buffers
    state, gradients  ->  Update    parameters, optimizer's state

Nothing else is carried from step to step: so nothing drifts, and every step can be computed again, rounded
otherwise by a ``draw``. It computes on the host, with no other rank in its process group.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn

from dpexp import devices, tensors
from dpexp.copies import copied
from dpexp.data.batch import Batch
from dpexp.data.rng import kept_globals, random_state, set_random_state
from dpexp.strategies.placed import Placed, StepEndedError
from dpexp.strategies.sync_batch_norm import on_one_device
from dpexp.training.optimizer_state import groups
from dpexp.training.optimizers import OptimizerFactory
from dpexp.training.trainer import Trainer
from dpexp.verification.alone import alone
from dpexp.verification.chunks import Chunked
from dpexp.verification.compare import Tensors
from dpexp.verification.mode import Mode, Switch
from dpexp.verification.recorder import Recorder, Step, end_step
from dpexp.verification.rounding import ExactObserver, OtherwiseRounded
from dpexp.verification.state import State, forget


@dataclass(frozen=True)
class Update:
    """The ``state`` after an optimizer's step, which follows the settings of its groups that steps change.

    ``narrowest`` is the shortest type in which it has computed, known where it was rounded otherwise.
    """

    state: State
    narrowest: torch.dtype | None = None


class SingleDevice:
    """It has the model, into which it loads each state. ``autocast`` is the type of mixed precision, if any.

    ``follows`` are the settings of the optimizer's groups that its steps may change, as far as it is known.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: OptimizerFactory | None,
        autocast: str = "",
        device: torch.device = devices.HOST,
    ) -> None:
        placed = Placed(devices.place(on_one_device(model), device), device, device, (device,))
        with alone():  # an optimizer may ask for its ranks
            self.trainer = Trainer(placed, _unknown_loss, optimizer, autocast)
        self._optimizer, self._autocast, self._module = optimizer, autocast, placed.module
        self._first = groups(self.trainer.optimizers.members) if self.trainer.optimizers is not None else []
        self._switch = Switch(placed.module)
        self.follows = self._changed_settings()

    @property
    def dtype(self) -> torch.dtype:
        """Of its floating-point parameters, or else that of PyTorch."""
        return next(
            (p.dtype for p in self._module.parameters() if p.is_floating_point()), torch.get_default_dtype()
        )

    def again(self, dtype: torch.dtype | None = None, device: torch.device = devices.HOST) -> SingleDevice:
        """Another one of the same model as it is now: what it counts by itself is not counted here.

        One in another type, float64, has no mixed precision.
        """
        autocast = "" if dtype == torch.float64 else self._autocast
        return SingleDevice(copied(self._module, dtype or self.dtype), self._optimizer, autocast, device)

    # --- a step ---

    def step(
        self,
        state: State,
        batch: Batch,
        mode: Mode,
        draw: int | None = None,
        *,
        hooks: bool = False,
        from_own: bool = False,
    ) -> Step:
        """What a step computes before its optimizer, and the buffers after it.

        ``from_own``: each rank's chunk begins with its own buffers, not with those of the first.
        """
        objective = state.objective
        own = objective.copied(self._module, self.trainer.placed.output_device)

        def loss(outputs: Any, targets: Any) -> torch.Tensor:
            nonlocal objective
            probed, value = own.probed(outputs, targets)
            objective = replace(objective, place=probed.place, is_probed=True)
            return value

        self._load(state)
        self.trainer.loss = loss
        versions = {name: each._version for name, each in self.trainer.parameters().items()}
        recorder, rng = Recorder(self.trainer, True, end_step, with_loss=True), _RandomNumbers()

        def begin(chunk: int) -> None:
            rng.begin(state.random[chunk])
            for name, buffer in self.trainer.buffers().items() if from_own else ():
                own_buffer = state.buffers[chunk].get(name)
                if own_buffer is not None and own_buffer.shape == buffer.shape:
                    buffer.copy_(own_buffer)

        with (
            kept_globals(),
            self._in(mode, begin) as chunked,
            recorder.hooks(order=True) if hooks else nullcontext(),
        ):
            rng.begin(state.random[0])
            with alone(), _rounded(draw), suppress(StepEndedError):
                self.trainer.step(in_dtype(batch, self.dtype), ExactObserver(recorder))
            rng.look()
        parameters = self.trainer.parameters()
        step = replace(
            recorder.step,
            buffers=[*map(_cloned, [self.trainer.buffers()] if chunked is None else chunked.buffers_after)],
            drew=rng.drew,
            wrote=_cloned({n: p.detach() for n, p in parameters.items() if p._version != versions[n]}),
            additions={name: _additions(each.grad) for name, each in parameters.items()},
            stores=objective.criterion is not None and objective.criterion.is_method and self._has_stored(),
            objective=objective,
        )
        self.trainer.clear()
        return step

    def evaluate(
        self, state: State, batch: Batch, mode: Mode, draw: int | None = None, *, hooks: bool = False
    ) -> Step:
        """The outputs of a batch in eval mode, without gradients."""
        self._load(state)
        recorder, rng = Recorder(self.trainer, True, lambda: None), _RandomNumbers()
        with kept_globals(), self._in(mode, lambda chunk: rng.begin(state.random[chunk])):
            with recorder.hooks() if hooks else nullcontext(), alone(), _rounded(draw):
                outputs = self.trainer.evaluate(in_dtype(batch, self.dtype))
            rng.look()
        recorder.forward_ended(outputs)
        return replace(recorder.step, drew=rng.drew)

    @contextmanager
    def _in(self, mode: Mode, begin: Callable[[int], object]) -> Iterator[Chunked | None]:
        """The model in this mode, and what splits its rows; ``begin(chunk)`` is called before each chunk.

        A model may see what wraps its parts: what computes a batch as one has no wrappers.
        """
        placed = self.trainer.placed
        self._switch.set(mode.quiet)
        try:
            with mode.chunks.split(self._module, begin) if mode.chunks else nullcontext() as chunked:
                placed.module = chunked or self._module
                yield chunked
        finally:
            placed.module = self._module
            self._switch.set(frozenset())

    def _has_stored(self) -> bool:
        """Whether the forward has stored a tensor for a loss that is a method of the model."""
        stored = (value for module in self._module.modules() for value in vars(module).values())
        return any(getattr(each, "grad_fn", None) is not None for each in stored)

    # --- an update ---

    def update(
        self,
        state: State,
        gradients: Tensors,
        step: Step,
        *,
        clip_norm: float | None = None,
        draw: int | None = None,
    ) -> Update:
        """What the optimizer makes of these full gradients, which are as sparse as those of its ``step``."""
        optimizers = self.trainer.optimizers
        assert optimizers is not None
        self._load(state)
        for name, parameter in self.trainer.parameters().items():
            parameter.grad = _like(gradients.get(name), parameter, step.gradients.get(name))
        optimizers.clip_norm = clip_norm
        optimizers.write_attributes(state.attributes)
        with alone(), _rounded(draw) as rounded:
            self.trainer.update()
        after = State.of(self.trainer, state.objective).following(state.follows | self._changed_settings())
        forget(self.trainer)
        return Update(after, rounded.narrowest if rounded is not None else None)

    def _changed_settings(self) -> frozenset[str]:
        """The settings of groups that the optimizer's steps change.

        All of an optimizer that a user wrote or that has a schedule, which may change them in later steps.
        """
        members = self.trainer.optimizers.members if self.trainer.optimizers is not None else []
        pairs = chain.from_iterable(
            zip(member.param_groups, first, [member] * len(first), strict=True)
            for member, first in zip(members, self._first, strict=True)
        )
        return frozenset(
            f"group {number}: {key}"
            for number, (group, first, member) in enumerate(pairs)
            for key, value in first.items()
            if "initial_lr" in group
            or not type(member).__module__.startswith(("torch.", "dpexp."))
            or _leaves(group[key]) != _leaves(value)
        )

    # --- the state ---

    def _load(self, state: State) -> None:
        with torch.no_grad():
            state.load(self.trainer)
        members = self.trainer.optimizers.members if self.trainer.optimizers is not None else []
        own = [group for member in members for group in member.param_groups]
        for group, first in zip(own, chain.from_iterable(self._first), strict=True):
            _set(group, first)
        for group, of_layout in zip(own, chain.from_iterable(state.groups), strict=False):
            _set(group, of_layout)


def in_dtype(batch: Batch, dtype: torch.dtype) -> Batch:
    """The batch in memory of its own, with floating-point inputs and targets of this type."""
    return batch.copied().changed(partial(tensors.cast, dtype=dtype))


class _RandomNumbers:
    """Whether any are drawn, although each chunk begins with those of its rank."""

    def __init__(self) -> None:
        self.drew, self._since = False, random_state()

    def begin(self, state: bytes) -> None:
        self.look()
        set_random_state(state)
        self._since = random_state()

    def look(self) -> None:
        self.drew = self.drew or self._since != random_state()


def _rounded(draw: int | None) -> Any:
    """A context that rounds otherwise; without a draw it changes nothing."""
    return nullcontext() if draw is None else OtherwiseRounded(draw)


def _unknown_loss(outputs: Any, targets: Any) -> torch.Tensor:
    raise RuntimeError("the loss is part of the state, with which a step begins")


def _cloned(values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: each.cpu().clone() for name, each in values.items()}


def _set(group: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Give a group copies of the values that it does not have: an optimizer may change them in place."""
    changed = {key: value for key, value in values.items() if _leaves(group[key]) != _leaves(value)}
    group.update(copy.deepcopy(changed))


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
    value: torch.Tensor | None, parameter: nn.Parameter, own: torch.Tensor | None
) -> torch.Tensor | None:
    """A gradient for the parameter, as sparse as its own was."""
    if value is None:
        return None
    value = value.to(parameter.device, parameter.dtype, copy=True)
    if own is None or own.is_sparse == value.is_sparse:
        return value
    if value.is_sparse:
        return value.to_dense()
    rows = own.coalesce().indices().to(parameter.device)
    return torch.sparse_coo_tensor(rows, value[rows[0]], parameter.shape, check_invariants=False)
