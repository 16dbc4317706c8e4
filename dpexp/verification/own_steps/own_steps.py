"""Own steps: the first steps of a run, and those after its last, beside a single device in the run's type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from dpexp.config.errors import describe
from dpexp.data.batch import Batch
from dpexp.data.objective import Objective
from dpexp.devices import without_tf32
from dpexp.training.optimizer_choice import OptimizerFactory
from dpexp.training.trainer import Trainer
from dpexp.verification.comparison import on_host
from dpexp.verification.diagnosis.locate import Locator
from dpexp.verification.limits.compare import Difference, Limits
from dpexp.verification.limits.rounding import NEGLIGIBLE
from dpexp.verification.modes.by_nature import WrittenByShards
from dpexp.verification.modes.chunks import Chunks
from dpexp.verification.modes.mode import Mode
from dpexp.verification.own_steps.rows import RankStates, as_the_layout
from dpexp.verification.own_steps.sides import NotComparableError, OwnSides
from dpexp.verification.own_steps.state import read_by_rows
from dpexp.verification.result import TOLERANCE
from dpexp.verification.steps.model_copy import copied
from dpexp.verification.steps.recorder import fewer_collections
from dpexp.verification.steps.side_by_side import Failure, Report, SingleDeviceError, no_report
from dpexp.verification.touched_rows import touched_rows

FIRST = 4
"""So many of the run's first steps are compared; those that a short warm-up lacks come after the last."""


@dataclass(frozen=True)
class OwnResult:
    """The worst difference of each kind over these ``steps``.

    ``note`` says why none could be compared, ``remarks`` which could not be.
    """

    dtype: str
    steps: int = 0
    worst: Mapping[str, Difference] = field(default_factory=dict)
    tolerance: float = 0.0
    failed: Difference | None = None
    cause: str = ""
    note: str = ""
    remarks: Sequence[str] = ()


class OwnSteps:
    """Made before the model is placed, of which it keeps a copy, with the touched rows of large tables.

    ``bind`` gives it the run's trainer. What counts as rounding depends on the run's type. ``report`` gets
    what differs before it is located. ``proven`` is the mode in which training mode was compared before.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        optimizer: OptimizerFactory | None,
        dtype: torch.dtype,
        autocast: str = "",
        report: Report = no_report,
        proven: Mode | None = None,
    ) -> None:
        self._proven = proven
        self._objective, self._optimizer, self._report = objective, optimizer, report
        self._dtype, self._autocast = dtype, autocast
        self._copy, self._rows = copied(model, dtype).train(optimizer is not None), touched_rows(model)
        self.note = ""

    def bind(self, trainer: Trainer) -> OwnResult:
        """Compare the model as placed, before any step."""
        layout, states = read_by_rows(trainer, self._rows), RankStates()
        chunks = Chunks.of(layout.placed, trainer.group)
        module, why_not = as_the_layout(self._copy, layout.placed, chunks, states, self._proven)
        self.note = self._of_layout = f"not compared: {why_not}" if why_not else ""
        loss = self._objective.on_one_device
        reference = Trainer(on_host(module), loss, self._optimizer, self._autocast)
        tolerance, negligible = base_tolerance(self._dtype, self._autocast)
        self._layout = layout
        self._sides = OwnSides(
            layout,
            reference,
            self._objective,
            trainer.group,
            Limits(tolerance, negligible, eps=torch.finfo(self._dtype).eps),
            WrittenByShards({}, trainer.group.dp_size, tolerance),
            optimizer=self._optimizer,
            autocast=self._autocast,
            dtype=self._dtype,
            states=states,
            is_split=chunks.splits,
        )
        failure = self._sides.check_placed()
        if failure is None:
            return self._result()
        error, name = failure.worst.error, failure.worst.tensor
        return self._result(failure, f"parameter '{name}' differs from the model's by {error:.1e}")

    def first(self, batches: Iterable[Batch], parts: Iterable[Batch]) -> OwnResult:
        """The run's step on each of its parts of the global batches."""
        return self._taken(zip(batches, parts, strict=False))

    def last(self, batches: Iterable[Batch], parts: Iterable[Batch]) -> OwnResult:
        """The same from the state of a run that has trained, which then accumulates as before."""
        apart = self._sides.apart()
        if apart:
            return self._result(cause=apart)
        self.note = self._of_layout  # not that of a batch which a single device did not compute
        self._sides.restart()
        if self._layout.optimizers is None:
            return self._taken(zip(batches, parts, strict=False))
        with self._layout.optimizers.restarted():
            return self._taken(zip(batches, parts, strict=False))

    def _taken(self, pairs: Iterable[tuple[Batch, Batch]]) -> OwnResult:
        with fewer_collections(self._copy), without_tf32():
            return self._compared(pairs)

    def _compared(self, pairs: Iterable[tuple[Batch, Batch]]) -> OwnResult:
        for batch, part in pairs:
            if not self.note:
                try:
                    failure = self._sides.take(batch, part)
                except NotComparableError as why:
                    self.note = f"not compared: {why}"
                except SingleDeviceError as raised:
                    self._layout.step(part)  # which raises the same, or computes something else
                    return self._result(
                        cause=f"a single device raises {describe(raised.cause)}, the run does not"
                    )
                else:
                    if failure:
                        located = Locator(self._sides, failure, self._copy, self._report)
                        return self._result(failure, located.message())
                    continue
            self._layout.step(part)
        return self._result()

    def _result(self, failure: Failure | None = None, cause: str = "") -> OwnResult:
        sides, dtype = self._sides, str(self._dtype).removeprefix("torch.")
        worst, remarks = sides.errors.of_all_ranks(), sides.hidden_notes()
        tolerance = max((each.limit for each in worst.values()), default=sides.limits.tolerance)
        failed = failure.worst if failure is not None else None
        if failed is not None:
            tolerance = failed.limit
        elif remarks and not sides.compared and not self.note:
            self.note, remarks = remarks[0], []
        steps = 0 if self.note else sides.compared
        return OwnResult(dtype, steps, worst, tolerance, failed, cause, self.note, remarks)


def base_tolerance(dtype: torch.dtype, autocast: str) -> tuple[float, float]:
    """(errors that are rounding, what of a kind is negligible) in the narrowest type of a run."""
    narrowest = min((dtype, getattr(torch, autocast or "float64")), key=lambda each: -torch.finfo(each).eps)
    eps = torch.finfo(narrowest).eps
    if eps in (torch.finfo(torch.float64).eps, torch.finfo(torch.float32).eps):
        return TOLERANCE[narrowest], NEGLIGIBLE[narrowest]
    return EPS * eps, min(NEGLIGIBLE[torch.bfloat16], 100 * eps)


EPS = 4
"""Errors up to so many eps of a narrow type are its rounding."""
