"""Sides: a run's own trainer, and a single device that takes each of its steps from the run's state.

    single device   forward, loss, backward |                                        | optimizer |
    run                                     | forward, loss, backward | compare | optimizer      | compare

The run computes as it does without it: no hooks, nothing is written to its tensors, its random numbers are
its own. Each step begins from the run's state, and the optimizer of the single device gets the run's
gradients, so that errors of rounding do not grow from step to step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch

from dpexp import tensors
from dpexp.data.batch import Batch
from dpexp.data.rng import kept_globals
from dpexp.parallel.parallel_apply import intra_op_threads
from dpexp.strategies.placed import StepEndedError
from dpexp.training.optimizer_choice import OptimizerFactory
from dpexp.training.optimizer_state import groups
from dpexp.training.trainer import Trainer
from dpexp.verification.limits.compare import Difference, Noise, noise_of
from dpexp.verification.limits.errors import Errors
from dpexp.verification.limits.norms import Tensors, bounded, magnitude
from dpexp.verification.limits.parts import Parts, parts_of
from dpexp.verification.limits.rounding import OF_OTHER_KERNELS, largest
from dpexp.verification.limits.small_tensors import alike, distances, finite_norms
from dpexp.verification.modes.chunks import Chunked
from dpexp.verification.own_steps.replay import Replay
from dpexp.verification.own_steps.rounding import DRAWS, Computed, Kinds, StepRounding
from dpexp.verification.own_steps.rows import RankStates, random_states
from dpexp.verification.own_steps.state import State, additions, follow_groups, give_gradients, of_layout
from dpexp.verification.steps.recorder import Recorder, Step, computed, optimizer_numbers
from dpexp.verification.steps.side_by_side import DiffersError, Failure, SideBySide, SingleDeviceError
from dpexp.verification.touched_rows import UnknownIdError

ROUNDED = 2
"""Last bits by which a parameter may differ after each addition to it."""

NO_MEMORY = "allocate memory"
"""In PyTorch's error where the host has none left: a single device needs more than the run."""


class NotComparableError(Exception):
    """The single device does not compute what the run does, for a reason that is not an error of the run."""


@dataclass
class OwnSides(SideBySide):
    """``layout`` is the run's own trainer; ``optimizer``, ``autocast`` and ``dtype`` are those of the run.

    ``is_split``: whether shards compute parts of a batch.
    """

    optimizer: OptimizerFactory | None = None
    autocast: str = ""
    dtype: torch.dtype = torch.float32
    states: RankStates = field(default_factory=RankStates)
    is_split: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._unmeasured = self.limits
        self._is_chunked = isinstance(self.reference.placed.module, Chunked)
        optimizers = self.reference.optimizers
        self._groups = groups(optimizers) if optimizers is not None else []

    def restart(self) -> None:
        """Forget the steps so far, with the gradients of batches since the optimizer's last one."""
        self.steps, self.limits = 0, self._unmeasured
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

        Raises before the run's step: SingleDeviceError, and NotComparableError where that may be due to the
        devices, or to the chunks. Every rank must call this.
        """
        self.steps += 1
        self.rows[self.steps] = batch.rows
        expected = self._expected(batch)
        found = Recorder(
            self.layout, bool(part.rows), lambda: self._compare(found.step, expected, batch, part), True
        )
        try:
            self.layout.step(part, found)
        except DiffersError as ended:
            self._name_modules(ended.failure, batch, part)
            return ended.failure
        if self.reference.optimizers is None:
            return None
        with kept_globals():
            failed = self._judged_update(found.step)
        return Failure(failed, batch, found.step, expected) if failed else None

    def _expected(self, batch: Batch) -> Step:
        """What the single device computes from the run's state, and the run's random numbers."""
        with kept_globals():
            self._follow()
            self._threads, self._random = torch.get_num_threads(), random_states()
            before = self._random
            self.states.gather(self.group)
            try:
                expected = computed(self.reference, batch, with_loss=True)
            except (RuntimeError, NotImplementedError) as error:
                is_of_model = self.layout.placed.is_on_host and not self._is_chunked
                if is_of_model and not isinstance(error, UnknownIdError) and NO_MEMORY not in str(error):
                    raise SingleDeviceError(error, "model") from error
                raise NotComparableError(f"a single device does not compute it: {error}") from error
            is_one = not (self.is_split or self.group.size > 1)
            self._draws = before != random_states()
            if self._draws and not (is_one or self._is_chunked):
                raise NotComparableError("it draws random numbers, and each shard draws its own")
        return expected

    def _compare(self, found: Step, expected: Step, batch: Batch, part: Batch) -> None:
        """Measured with the threads of what is expected: their number can change bits."""
        with kept_globals(), intra_op_threads(self._threads):
            self._combine(found, expected, part)
            failed = self._judged_step(found, expected, batch)
            if failed:
                raise DiffersError(Failure(failed, batch, found, expected))
            self._additions = additions(self.reference)
            give_gradients(self.reference, found.gradients)

    def _buffers(self, single: Trainer) -> Tensors:
        """Those of the first shard, where each has its own; without chunks only what no shard writes."""
        module = single.placed.module
        if isinstance(module, Chunked):
            return module.buffers_after[0] if self.group.dp_rank == 0 else {}
        by_shards = self.written.names(self.layout, "buffers") if self.is_split else set()
        return {name: each for name, each in single.buffers().items() if name not in by_shards}

    def _updates(self, found: Tensors, expected: Tensors) -> dict[str, Parts]:
        """What the step has changed, without the rounding of the sum: some last bits of what has changed."""
        own = {name: found[name].cpu() for name in expected if name in found}
        changed, apart = distances(expected, self._initial), distances(own, expected)
        sizes = _written(own, expected, self._initial)
        rounded = {
            name: ROUNDED * self._additions[name] * torch.finfo(expected[name].dtype).eps * size
            for name, size in sizes.items()
        }
        return {name: Parts([changed[name]], [max(0.0, apart[name] - off)]) for name, off in rounded.items()}

    # --- limits ---

    def _judged_step(self, found: Step, expected: Step, batch: Batch) -> Difference | None:
        """What differs before the optimizer."""

        def of(step: Step, single: Trainer) -> Computed:
            step.outputs = {name: step.outputs[name] for name in expected.outputs}
            return Computed(step, self._buffers(single))

        rounding = StepRounding(
            Computed(found, self._completed(self.layout.buffers())),
            of(expected, self.reference),
            lambda draw: of(*self._replay.step(batch, draw)),
            lambda: of(*exact) if (exact := self._exact_step(batch)) else None,
            self._unmeasured,
            self.steps,
        )
        return self._judged(rounding.plain, rounding.measured)

    def _exact_step(self, batch: Batch) -> tuple[Step, Trainer] | None:
        """The step in float64, unless the run's type is no shorter, or draws other random numbers."""
        is_short = self.dtype != torch.float64 or bool(self.autocast)
        step = self._replay.exact_step(batch) if is_short and not self._draws else None
        return step if all(self.group.all_gather(step is not None)) else None

    def _judged_update(self, given: Step) -> Difference | None:
        """What differs after both optimizers have made a step of the gradients of the run."""
        self.reference.update()
        expected, state = self.reference.full_parameters(), optimizer_numbers(self.reference)
        kinds = self._after()

        def measured(draw: int) -> tuple[Kinds, Noise]:
            single = self._replay.updated(given.gradients, draw)
            found = single.full_parameters()
            apart = {
                "parameters": parts_of(found, expected),
                "updates": self._updates(found, expected),
                "optimizer": parts_of(optimizer_numbers(single), state),
            }
            return kinds, largest([noise_of(apart, self.steps)])

        return self._judged(kinds, measured)

    def _judged(self, kinds: Kinds, measured: Callable[[int], tuple[Kinds, Noise]]) -> Difference | None:
        """What differs. Where it may be rounding, that of the single device is measured, and decides.

        Rounding is ``measured`` in one way after the other, until one explains the difference.
        """
        known, before, draws = dict(self.errors.worst), self.limits, list[Noise]()
        failed = self.errors.failed(self.steps, kinds)
        while failed is not None and math.isfinite(failed.apart) and len(draws) < DRAWS:
            kinds, noise = measured(len(draws))
            draws.append(noise)
            self.limits = replace(before, noise={**before.noise, **largest(draws, 1)})
            self.errors.worst, self.errors.limits = dict(known), self.limits
            failed = self.errors.failed(self.steps, kinds)
        return failed

    @property
    def _replay(self) -> Replay:
        bits = 1 if self.layout.placed.is_on_host else OF_OTHER_KERNELS
        return Replay(
            self.reference, self.optimizer, self.autocast, self.dtype, self._before, self._random, bits
        )

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


def _written(found: Tensors, expected: Tensors, initial: Tensors) -> dict[str, float]:
    """The norm of the numbers of each parameter that the step has changed on either side."""
    sizes = dict.fromkeys(found, -1.0)
    for some in alike(found, expected, initial):
        of_found, of_expected, before = some.sides
        changed = (of_found != before) | (of_expected != before)
        sizes.update(zip(some.names, map(bounded, finite_norms(of_expected)), strict=True))
        for row in (~changed.all(1)).nonzero().flatten().tolist():
            sizes[some.names[row]] = magnitude(of_expected[row][changed[row]])
    others = (name for name, size in sizes.items() if size < 0)
    return sizes | {name: _written_of(found[name], expected[name], initial[name]) for name in others}


def _written_of(found: torch.Tensor, expected: torch.Tensor, initial: torch.Tensor) -> float:
    if found.shape != expected.shape:
        return magnitude(expected)
    changed = (found != initial) | (expected != initial)
    return magnitude(expected if bool(changed.all()) else expected[changed])
