"""Equivalence: whether a layout of a model trains as a single device does.

It knows nothing of a run's config: a model, a function that lays it out, batches, a loss and an optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

import torch
from torch import nn

from dpexp import devices, tensors
from dpexp.config.errors import describe
from dpexp.data.batch import Batch
from dpexp.data.objective import Objective
from dpexp.distributed.process_group import ProcessGroup
from dpexp.strategies.placed import Loss, Placed
from dpexp.strategies.ranks.sync_batch_norm import on_one_device
from dpexp.training.optimizer_choice import OptimizerChoice, OptimizerFactory
from dpexp.training.trainer import Trainer
from dpexp.verification.by_nature import WrittenByShards, hook_notes, set_comparable_mode, train_batch_norms
from dpexp.verification.compare import Difference
from dpexp.verification.diagnosis.locate import Locator
from dpexp.verification.gathered_outputs import scalars_of_replicas
from dpexp.verification.model_copy import copied
from dpexp.verification.random_draws import WHOLE_MODEL, more_quiet
from dpexp.verification.rounding import MARGIN, MOST, NARROWER, OtherwiseRoundedTrainer
from dpexp.verification.side_by_side import DrawsRandomNumbersError, SideBySide, SingleDeviceError

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
"""Largest relative error that counts as rounding, by the dtype of the comparison."""


class VerificationError(RuntimeError):
    """The layout does not compute what a single device computes."""

    @classmethod
    def of(cls, layout: str, tolerance: float | None, cause: str, note: str = "") -> VerificationError:
        """The error of a layout that failed for this cause."""
        limit = f" (allowed {tolerance:g})" if tolerance is not None else ""
        shown = f" ({note})" if note else ""
        return cls(f"{layout} does not compute what a single device computes{limit}: {cause}{shown}")


LayOut: TypeAlias = Callable[[nn.Module], Placed]


@dataclass(frozen=True)
class Result:
    """The largest difference of each kind, what differs by nature (``notes``), and where a failure begins."""

    worst: Mapping[str, Difference]
    steps: int
    tolerance: float
    notes: Sequence[str] = ()
    cause: str = ""
    quiet: frozenset[str] = frozenset()
    dtype: torch.dtype = torch.float64

    @property
    def passed(self) -> bool:
        """Whether every kind equals the single device's to rounding."""
        return not self.cause

    @property
    def largest(self) -> Difference | None:
        """The difference with the largest error of all kinds."""
        return max(self.worst.values(), key=lambda each: each.error, default=None)

    def error(self, kind: str) -> float | None:
        """The relative error of one kind; None if there was nothing to compare."""
        return self.worst[kind].error if kind in self.worst else None


@dataclass(frozen=True)
class Equivalence:
    """Trains a copy of the model in the layout and one on the host, a step on each of the global batches.

    ``optimizer`` makes the optimizer of some parameters; without one only forwards are compared. Neither the
    model nor the random state of the host is changed. ``narrowed`` says why ``dtype`` is not a wider one.
    """

    model: nn.Module
    lay_out: LayOut
    batches: Sequence[Batch]
    loss: Loss | Objective
    optimizer: OptimizerFactory | None = None
    group: ProcessGroup = field(default_factory=ProcessGroup)
    dtype: torch.dtype = torch.float64
    narrowed: str = ""

    def result(self) -> Result:
        """Compare; every rank must call this, and gets the same result.

        Modules that draw random numbers outside of known layers are compared in eval mode, and a model that
        does not compute in a type in the next narrower one. Raises what the model raises in every type, and
        NonfiniteError where the single device's loss is not finite.
        """
        try:
            return self._result_in_this_type()
        except SingleDeviceError as error:
            narrower, cause, where = NARROWER.get(self.dtype), error.cause, error.where
        if narrower is None:
            raise cause
        why = f"compared in {narrower}, since the {where} does not compute in {self.dtype}: {describe(cause)}"
        try:
            return replace(self, dtype=narrower, narrowed=why).result()
        except type(cause):
            raise cause from None

    def _result_in_this_type(self) -> Result:
        quiet: frozenset[str] = frozenset()
        while True:
            with torch.random.fork_rng(devices=[]), scalars_of_replicas():
                try:
                    return self._result(quiet)
                except DrawsRandomNumbersError as error:
                    quiet = more_quiet(quiet, error.names)

    def _result(self, quiet: frozenset[str]) -> Result:
        """Errors as small as rounding are judged by that of the single device, where it is not in float64."""
        if self.narrowed:
            return self._compared(quiet, *self._limit(quiet))
        tolerance = TOLERANCE[self.dtype]
        result = self._compared(quiet, tolerance)
        if result.largest is not None and tolerance < result.largest.error <= MOST[self.dtype]:
            limit, note = self._limit(quiet)
            if limit > tolerance:
                return self._compared(quiet, limit, note)
        return result

    def _limit(self, quiet: frozenset[str]) -> tuple[float, str]:
        """How far rounding may set layouts apart, and a note that says so; the same on every rank."""
        model, _ = self.comparable_copy(self.dtype, quiet)
        rounded = OtherwiseRoundedTrainer(on_host(model), self._objective.loss, self.optimizer)
        written = WrittenByShards({}, 1, math.inf)
        one_process, may_draw = ProcessGroup(), WHOLE_MODEL in quiet
        sides = SideBySide(
            rounded,
            self._reference(quiet)[0],
            self._objective,
            one_process,
            math.inf,
            written,
            may_draw,
            self._amplifies,
        )
        sides.run(self._batches)
        own = max((each.error for each in sides.worst.values()), default=0.0)
        error = max(numbers[0] for numbers in self.group.all_gather_numbers([own]))
        limit = min(MARGIN * error, MOST[self.dtype])
        measured = f"a single device that rounds it otherwise differs from itself by {error:.1e}"
        why = self.narrowed or "the forward computes in a narrower type than float64"
        cut = "cut to " if limit < MARGIN * error else ""
        return limit, f"{why}; {measured}, and the limit is {cut}{limit:.1e}: smaller errors are not seen"

    @cached_property
    def _objective(self) -> Objective:
        return self.loss if isinstance(self.loss, Objective) else Objective(loss=self.loss)

    @cached_property
    def _batches(self) -> list[Batch]:
        """The batches in the dtype of the comparison."""
        return [in_dtype(batch, self.dtype) for batch in self.batches]

    @property
    def _amplifies(self) -> bool:
        return isinstance(self.optimizer, OptimizerChoice) and self.optimizer.amplifies

    def _reference(
        self, quiet: frozenset[str], trained: frozenset[str] = frozenset()
    ) -> tuple[Trainer, list[str]]:
        """The single device, and notes about the mode in which modules are compared."""
        model, notes = self.comparable_copy(self.dtype, quiet, trained)
        loss = self._objective.on_one_device
        return Trainer(on_host(model), loss, self.optimizer), notes

    def _compared(self, quiet: frozenset[str], tolerance: float, note: str = "") -> Result:
        objective, may_draw = self._objective, WHOLE_MODEL in quiet
        model, _ = self.comparable_copy(self.dtype, quiet)
        layout = Trainer(self.lay_out(model), objective.loss, self.optimizer, group=self.group)
        trained = frozenset[str]()
        if self.optimizer is not None and not may_draw:
            trained = train_batch_norms(layout.placed, self.group)
        reference, notes = self._reference(quiet, trained)
        written = WrittenByShards(dict(self.model.named_buffers()), self.group.dp_size, tolerance)
        sides = SideBySide(
            layout, reference, objective, self.group, tolerance, written, may_draw, self._amplifies
        )
        failure = sides.run(self._batches)
        cause = Locator(sides, failure, self.model).message() if failure is not None else ""
        notes += [
            *filter(None, [note]),
            *sides.notes,
            *hook_notes(self.model, self.group.dp_size),
            *written.notes(self.group),
        ]
        return Result(sides.worst_of_all_ranks(), sides.steps, tolerance, notes, cause, quiet, self.dtype)

    def comparable_copy(
        self,
        dtype: torch.dtype,
        quiet: frozenset[str] = frozenset(),
        trained: frozenset[str] = frozenset(),
    ) -> tuple[nn.Module, list[str]]:
        """The model in this type, in a mode in which layouts can be compared, and notes about the mode."""
        model = copied(self.model, dtype)
        return model, set_comparable_mode(model, quiet, trained)


def in_dtype(batch: Batch, dtype: torch.dtype) -> Batch:
    """The batch with floating-point inputs and targets of this type."""
    inputs, targets = tensors.cast((batch.inputs, batch.targets), dtype)
    return replace(batch, inputs=inputs, targets=targets)


def on_host(model: nn.Module) -> Placed:
    """The model as a single device has it."""
    return Placed(
        devices.place(on_one_device(model), devices.HOST), devices.HOST, devices.HOST, (devices.HOST,)
    )
