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
from dpexp.verification.compare import Difference, Limits, Noise
from dpexp.verification.diagnosis.locate import Locator
from dpexp.verification.gathered_outputs import scalars_of_replicas
from dpexp.verification.model_copy import copied
from dpexp.verification.random_draws import WHOLE_MODEL, more_quiet
from dpexp.verification.rounding import DRAWS, MARGIN, MOST, NARROWER, OtherwiseRoundedTrainer, largest
from dpexp.verification.side_by_side import DrawsRandomNumbersError, SideBySide, SingleDeviceError

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
"""Largest relative error that counts as rounding, by the dtype of the comparison."""

IN_FLOAT64 = 1e-9
"""What rounding in float64 may reach; larger, it is that of a narrower type."""


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
    """The worst difference of each kind, what differs by nature (``notes``), and what ``failed``, and why."""

    worst: Mapping[str, Difference]
    steps: int
    notes: Sequence[str] = ()
    cause: str = ""
    quiet: frozenset[str] = frozenset()
    dtype: torch.dtype = torch.float64
    failed: Difference | None = None
    trained: frozenset[str] = frozenset()

    @property
    def passed(self) -> bool:
        """Whether every kind equals the single device's to rounding."""
        return not self.cause

    @property
    def tolerance(self) -> float:
        """The largest limit of an error: it is larger than usual where rounding was measured."""
        limits = [each.limit for each in self.worst.values() if math.isfinite(each.limit)]
        return max(limits, default=TOLERANCE[torch.float64])

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
        """Errors that may be rounding are judged by that of the single device, which is measured then."""
        most, least = MOST[self.dtype], torch.finfo(self.dtype).eps
        if self.narrowed:
            return self._compared(quiet, Limits(least, most, self._noise(quiet)))
        least = TOLERANCE[self.dtype]
        result = self._compared(quiet, Limits(least, most))
        failed = result.failed
        if failed is None or failed.share > most:
            return result
        noise = self._noise(quiet, result.trained)
        return self._compared(quiet, Limits(least, most, noise)) if self._is_within(noise, failed) else result

    def _is_within(self, noise: Noise, failed: Difference) -> bool:
        """Whether what differs may be rounding, on every rank."""
        key = (failed.kind, failed.step, failed.tensor)
        return all(self.group.all_gather(failed.apart <= max(noise.get(key, (0.0,)))))

    def _noise(self, quiet: frozenset[str], trained: frozenset[str] = frozenset()) -> Noise:
        """How far rounding may set layouts apart, of each tensor; the same on every rank."""
        return largest(self._rounded_otherwise(quiet, trained, draw) for draw in range(DRAWS))

    def _rounded_otherwise(self, quiet: frozenset[str], trained: frozenset[str], draw: int) -> Noise:
        """How far apart a single device is from itself when every operation reads other last bits."""
        model, _ = self.comparable_copy(self.dtype, quiet, trained)
        rounded = OtherwiseRoundedTrainer(on_host(model), self._objective.loss, self.optimizer)
        rounded.draw = draw
        written = WrittenByShards({}, 1, math.inf)
        sides = SideBySide(
            rounded,
            self._reference(quiet, trained)[0],
            self._objective,
            ProcessGroup(),
            Limits(math.inf),
            written,
            WHOLE_MODEL in quiet,
            self._amplifies,
            measures=True,
        )
        sides.run(self._batches)
        return sides.errors.noise

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

    def _compared(self, quiet: frozenset[str], limits: Limits) -> Result:
        objective, may_draw = self._objective, WHOLE_MODEL in quiet
        model, _ = self.comparable_copy(self.dtype, quiet)
        layout = Trainer(self.lay_out(model), objective.loss, self.optimizer, group=self.group)
        trained = frozenset[str]()
        if self.optimizer is not None and not may_draw:
            trained = train_batch_norms(layout.placed, self.group)
        reference, notes = self._reference(quiet, trained)
        written = WrittenByShards(dict(self.model.named_buffers()), self.group.dp_size, limits.tolerance)
        sides = SideBySide(
            layout, reference, objective, self.group, limits, written, may_draw, self._amplifies
        )
        failure = sides.run(self._batches)
        cause = Locator(sides, failure, self.model).message() if failure is not None else ""
        worst = sides.errors.of_all_ranks()
        notes += [
            *self._rounding_notes(limits, worst),
            *sides.notes,
            *hook_notes(self.model, self.group.dp_size),
            *written.notes(self.group),
        ]
        failed = failure.worst if failure is not None else None
        return Result(worst, sides.steps, notes, cause, quiet, self.dtype, failed, trained)

    def _rounding_notes(self, limits: Limits, worst: Mapping[str, Difference]) -> list[str]:
        """What was allowed because rounding was measured, and is therefore not seen."""
        limit = max((each.limit for each in worst.values()), default=0.0)
        if limit <= limits.tolerance:
            return []
        in_short = "the forward computes in a narrower type than float64"
        why = self.narrowed or (in_short if limit > IN_FLOAT64 else f"rounding exceeds {limits.tolerance:g}")
        measured = f"a single device that rounds it otherwise differs from itself by {limit / MARGIN:.1e}"
        cut = "cut to " if limit >= limits.most else ""
        return [f"{why}; {measured}, and the limit is {cut}{limit:.1e}: smaller errors are not seen"]

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
