"""Sides: a run's own trainer, and a single device that takes each of its steps from the run's state.

    single device   forward, loss, backward |                                        | optimizer |
    run                                     | forward, loss, backward | compare | optimizer      | compare

The run computes as it does without it: no hooks, nothing is written to its tensors, its random numbers are
its own. Each step begins from the run's state, and the optimizer of the single device gets the run's
gradients, so that errors of rounding do not grow from step to step.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from dpexp import tensors
from dpexp.config.alike import listed
from dpexp.data.batch import Batch
from dpexp.data.rng import kept_globals
from dpexp.strategies.modules.wrappers import parts
from dpexp.strategies.placed import StepEndedError
from dpexp.strategies.ranks.sync_batch_norm import SYNCHRONIZED
from dpexp.training.optimizer_choice import OptimizerFactory
from dpexp.training.optimizer_state import groups
from dpexp.training.trainer import Trainer
from dpexp.verification.comparison import on_host
from dpexp.verification.limits.compare import Difference, Noise, Parts, Tensors, distance, magnitude, parts_of
from dpexp.verification.limits.errors import Errors
from dpexp.verification.limits.rounding import DRAWS, OtherwiseRounded, OtherwiseRoundedTrainer, largest
from dpexp.verification.own_steps.state import State, follow_groups, of_layout
from dpexp.verification.steps.model_copy import copied
from dpexp.verification.steps.recorder import Recorder, Step, computed, optimizer_numbers
from dpexp.verification.steps.side_by_side import (
    Failure,
    SideBySide,
    _DiffersError,
    _parts_of_gradients,
    _scalar,
)

ROUNDED = 2
"""Last bits by which a parameter may differ after one addition to it."""

Kinds = Mapping[str, Mapping[str, Parts]]


class NotComparableError(Exception):
    """The single device does not compute what the run does, for a reason that is not an error of the run."""


@dataclass
class OwnSides(SideBySide):
    """``layout`` is the run's own trainer; ``optimizer``, ``autocast`` and ``dtype`` are those of the run."""

    optimizer: OptimizerFactory | None = None
    autocast: str = ""
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        super().__post_init__()
        self._exact = self.limits
        self.is_split = _splits_rows(self.layout, self.group.dp_size)
        optimizers = self.reference.optimizers
        self._groups = groups(optimizers) if optimizers is not None else []

    def restart(self) -> None:
        """Forget the steps so far, with the gradients of batches since the optimizer's last one."""
        self.steps, self.limits = 0, self._exact
        self.errors = Errors(self.limits, self.group)
        if self.reference.optimizers is not None:
            self.reference.optimizers.restart()

    # --- before a step ---

    def check_placed(self) -> Failure | None:
        """Whether the model, as placed, has the numbers of the model as written."""
        found, expected = self.layout.complete_parameters(), self.reference.full_parameters()
        failed = self.errors.failed(0, {"parameters": parts_of(found, expected)})
        return Failure(failed, Batch((), None, 0, 0), Step(), Step()) if failed else None

    def apart(self) -> str:
        """Which parameter is not the same on all ranks that have it; every rank must call this."""
        found = {name: tensor.cpu() for name, tensor in self.layout.full_parameters().items()}
        by_rank = self.group.all_gather({name: tensors.digest([each]) for name, each in found.items()})
        for name in dict.fromkeys(name for of_rank in by_rank for name in of_rank):
            ranks = [rank for rank, of_rank in enumerate(by_rank) if name in of_rank]
            if len({by_rank[rank][name] for rank in ranks}) > 1:
                full = self.group.all_gather(found.get(name))
                for rank in ranks[1:]:
                    error = self._error(name, full[rank], full[ranks[0]])
                    if error.ratio > 1:
                        what = f"parameter '{name}' of rank {rank} is not that of rank {ranks[0]}"
                        return f"{what} (apart by {error.error:.1e}): the ranks have trained apart"
        return ""

    def _error(self, name: str, found: torch.Tensor, expected: torch.Tensor) -> Difference:
        pair = parts_of({name: found}, {name: expected})
        return self.limits.judge("parameters", 0, pair)[name]

    def _follow(self) -> None:
        """Give the single device the state of the run."""
        state = of_layout(self.layout, self.reference)
        with torch.no_grad():
            state.load(self.reference)
        follow_groups(self.reference, self.layout, self._groups)
        self._before = State.of(self.reference)
        self._initial = dict(self._before.parameters)

    # --- a step ---

    def take(self, batch: Batch, part: Batch) -> Failure | None:
        """The run's step on its part of a global batch, beside the single device's.

        Raises NotComparableError before the run's step. Every rank must call this.
        """
        self.steps += 1
        expected = self._expected(batch)
        found = Recorder(
            self.layout, bool(part.rows), lambda: self._compare(found.step, expected, batch, part), True
        )
        try:
            self.layout.step(part, found)
        except _DiffersError as ended:
            self._name_modules(ended.failure, batch, part)
            return ended.failure
        if self.reference.optimizers is None:
            return None
        with kept_globals():
            failed = self._judged(self._updated(), self._noise_of_update)
        return Failure(failed, batch, found.step, expected) if failed else None

    def _expected(self, batch: Batch) -> Step:
        """What the single device computes from the run's state, and the run's random numbers."""
        self._check_statistics()
        with kept_globals():
            self._follow()
            self._random = before = random_states()
            try:
                expected = computed(self.reference, batch, with_loss=True)
            except (RuntimeError, NotImplementedError) as error:
                raise NotComparableError(f"a single device does not compute it: {error}") from error
            if before != random_states() and (self.is_split or self.group.size > 1):
                raise NotComparableError("it draws random numbers, and each shard draws its own")
        return expected

    def _check_statistics(self) -> None:
        if not self.is_split or self.reference.optimizers is None:
            return
        names = [
            part.name
            for part in parts(self.layout.placed.module)
            if isinstance(part.module, _BatchNorm) and not isinstance(part.module, SYNCHRONIZED)
        ]
        if names:
            raise NotComparableError(f"BatchNorm ({listed(names)}) uses the statistics of each shard")

    def _compare(self, found: Step, expected: Step, batch: Batch, part: Batch) -> None:
        with kept_globals():
            self._combine(found, expected, part)
            kinds = {
                "outputs": parts_of(found.outputs, expected.outputs),
                "loss": parts_of(_scalar(found.loss), _scalar(expected.loss)),
                "gradients": _parts_of_gradients(found.gradients, expected.gradients),
                "buffers": self._buffers(self._completed(self.layout.buffers())),
            }
            failed = self._judged(kinds, lambda: self._noise_of_step(batch, expected))
            if failed:
                raise _DiffersError(Failure(failed, batch, found, expected))
            self._give_gradients(self.reference, found)

    def _buffers(self, found: Tensors) -> dict[str, Parts]:
        """Those of the first shard; what several shards write, each from its own rows, is left out."""
        by_shards = self.written.names(self.layout, "buffers") if self.is_split else set()
        expected = {name: value for name, value in self.reference.buffers().items() if name not in by_shards}
        return parts_of({name: found[name] for name in expected if name in found}, expected)

    def _give_gradients(self, trainer: Trainer, found: Step) -> None:
        """The run's gradients for a single device, whose own differ from them by rounding."""
        for name, parameter in trainer.parameters().items():
            value = found.gradients.get(name)
            parameter.grad = None if value is None else _like(value, parameter)
        self._given = found

    def _updated(self) -> Kinds:
        """The single device's optimizer takes its step; both sides as their optimizers have left them."""
        self.reference.update()
        return self._after()

    def _updates(self, found: Tensors, expected: Tensors) -> dict[str, Parts]:
        """What the step has changed, without the rounding of the sum: some last bits of what has changed."""
        return {
            name: self._update(found[name].cpu(), value, self._initial[name])
            for name, value in expected.items()
            if name in found
        }

    @staticmethod
    def _update(found: torch.Tensor, expected: torch.Tensor, initial: torch.Tensor) -> Parts:
        if found.shape != expected.shape:
            return Parts([distance(expected, initial)], [math.inf])
        changed = (found != initial) | (expected != initial)
        found, expected, initial = found[changed], expected[changed], initial[changed]
        rounded = ROUNDED * torch.finfo(expected.dtype).eps * magnitude(expected)
        return Parts([distance(expected, initial)], [max(0.0, distance(found, expected) - rounded)])

    # --- rounding ---

    def _judged(self, kinds: Kinds, noise: Callable[[], Noise]) -> Difference | None:
        """What differs. Where it may be rounding, that of the single device is measured, and decides."""
        known = dict(self.errors.worst)
        failed = self.errors.failed(self.steps, kinds)
        if failed is None or failed.share > self.limits.most:
            return failed
        self.errors.worst = known
        self.limits = replace(self.limits, noise={**self.limits.noise, **noise()})
        self.errors.limits = self.limits
        return self.errors.failed(self.steps, kinds)

    def _noise_of_step(self, batch: Batch, expected: Step) -> Noise:
        def drawn(draw: int) -> Noise:
            rounded = self._rounded(draw)
            step = computed(rounded, batch, with_loss=True)
            return self._apart(
                {
                    "outputs": parts_of(step.outputs, expected.outputs),
                    "loss": parts_of(_scalar(step.loss), _scalar(expected.loss)),
                    "gradients": parts_of(step.gradients, expected.gradients),
                    "buffers": parts_of(rounded.buffers(), self.reference.buffers()),
                }
            )

        return largest(map(drawn, range(DRAWS)))

    def _noise_of_update(self) -> Noise:
        expected = self.reference.full_parameters()

        def drawn(draw: int) -> Noise:
            rounded = self._rounded(draw)
            self._give_gradients(rounded, self._given)
            with OtherwiseRounded(draw):
                rounded.update()
            found = rounded.full_parameters()
            return self._apart(
                {
                    "parameters": parts_of(found, expected),
                    "updates": self._updates(found, expected),
                    "optimizer": parts_of(optimizer_numbers(rounded), optimizer_numbers(self.reference)),
                }
            )

        return largest(map(drawn, range(DRAWS)))

    def _rounded(self, draw: int) -> OtherwiseRoundedTrainer:
        """A single device in the state before the step, which rounds otherwise."""
        model = copied(self.reference.placed.module, self.dtype)
        rounded = OtherwiseRoundedTrainer(on_host(model), self.reference.loss, self.optimizer, self.autocast)
        rounded.draw = draw
        with torch.no_grad():
            self._before.load(rounded)
        set_random_states(self._random)
        return rounded

    def _apart(self, kinds: Kinds) -> Noise:
        return {
            (kind, self.steps, name): each.apart
            for kind, of_kind in kinds.items()
            for name, each in of_kind.items()
        }

    # --- after a failure ---

    def _name_modules(self, failure: Failure, batch: Batch, part: Batch) -> None:
        """Take the step again with hooks, which the run's own has not had, and add what they record."""
        if failure.worst.kind == "buffers":
            return
        for trainer in (self.layout, self.reference):
            trainer.clear()
        with kept_globals(), torch.no_grad():
            self._before.load(self.reference)
        with suppress(Exception):  # of any kind: what has failed is known
            again = [self._with_hooks(self.reference, batch), self._with_hooks(self.layout, part)]
            failure.expected.calls, failure.found.calls = (step.calls for step in again)
            failure.expected.modules, failure.expected.order = again[0].modules, again[0].order

    @staticmethod
    def _with_hooks(trainer: Trainer, batch: Batch) -> Step:
        def end() -> None:
            raise StepEndedError

        recorder = Recorder(trainer, bool(batch.rows), end, True)
        with kept_globals(), recorder.hooks(order=True), suppress(StepEndedError):
            trainer.step(batch, recorder)
        return recorder.step


def _splits_rows(layout: Trainer, dp_size: int) -> bool:
    """Whether shards compute parts of a batch; of a user's layout over devices it is not known."""
    placed = layout.placed
    split = dp_size > 1 or any(part.pieces > 1 for part in parts(placed.module))
    return split or (placed.is_opaque and len(placed.devices) > 1)


def _like(value: torch.Tensor, parameter: torch.nn.Parameter) -> torch.Tensor:
    """A gradient in the type of the parameter, and as sparse as the one that it replaces."""
    now = parameter.grad
    value = value.to(parameter.dtype)
    if now is None or now.is_sparse == value.is_sparse:
        return value
    if value.is_sparse:
        return value.to_dense()
    rows = now.coalesce().indices()
    return torch.sparse_coo_tensor(rows, value[rows[0]], now.shape, check_invariants=False)


RandomStates = tuple[bytes, object]


def random_states() -> RandomStates:
    """Of the host's generators that a model may draw from; of equal ones the next numbers are equal."""
    return torch.get_rng_state().numpy().tobytes(), random.getstate()


def set_random_states(states: RandomStates) -> None:
    of_torch, of_python = states
    torch.set_rng_state(torch.frombuffer(bytearray(of_torch), dtype=torch.uint8))
    random.setstate(of_python)  # type: ignore[arg-type]
