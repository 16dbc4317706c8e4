"""Own steps: takes of the run's own trainer in its own type, its first steps and those after its last."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import torch
from torch import nn

from dpexp.data.batch import Batch
from dpexp.data.objective import Objective
from dpexp.devices import without_tf32
from dpexp.strategies.modules import parts
from dpexp.training.optimizers import OptimizerFactory
from dpexp.training.preserve import is_users
from dpexp.training.trainer import Trainer
from dpexp.verification.chunks import Chunks
from dpexp.verification.compare import Limits
from dpexp.verification.diagnosis.found import Found
from dpexp.verification.diagnosis.locate import Locator
from dpexp.verification.failure import Failure, SingleDeviceError
from dpexp.verification.judge import Judge
from dpexp.verification.mode import OTHER_NUMBERS, Mode, draws, has_batch_norm
from dpexp.verification.model_copy import copied
from dpexp.verification.recorder import fewer_collections
from dpexp.verification.result import TOLERANCE, Result
from dpexp.verification.rounding import NEGLIGIBLE
from dpexp.verification.single_device import SingleDevice
from dpexp.verification.state import read_by_rows
from dpexp.verification.take import Take
from dpexp.verification.touched_rows import touched_rows

Pairs: TypeAlias = Iterable[tuple[Batch, Batch]]
"""Global batches, and the part of each that the rank computes."""
FIRST = 4
"""So many of the run's first steps are compared; those that a short warm-up lacks come after the last."""
EPS = 4
"""Errors up to so many eps of a narrow type are its rounding."""


class OwnSteps:
    """Made before the model is placed, of which it keeps a copy, with the touched rows of large tables.

    ``bind`` gives it the run's trainer. ``compared`` is the mode in which training mode was compared before.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        optimizer: OptimizerFactory | None,
        dtype: torch.dtype,
        autocast: str = "",
        compared: Mode | None = None,
    ) -> None:
        self._objective, self._optimizer, self._compared = objective, optimizer, compared
        self._dtype, self._autocast = dtype, autocast
        self._copy, self._rows = copied(model, dtype).train(optimizer is not None), touched_rows(model)
        self.note = ""

    def bind(self, trainer: Trainer) -> Result:
        """Compare the model as placed, before any step."""
        layout = read_by_rows(trainer, self._rows)
        chunks = Chunks.of(layout.placed, trainer.group)
        mode, why_not = own_mode(self._copy, chunks, layout, self._compared)
        self.note = self._of_layout = f"not compared: {why_not}" if why_not else ""
        model = copied(self._copy, self._dtype)
        single = SingleDevice(model, self._objective, self._optimizer, self._autocast, chunks)
        single.set_mode(mode)
        is_short = self._dtype != torch.float64 or bool(self._autocast)
        tolerance, negligible = base_tolerance(self._dtype, self._autocast)
        limits = Limits.of(self._dtype, tolerance, negligible)
        self._counts = _counts(trainer)
        self._rows_are_apart = not (self._autocast or draws(self._copy) or has_batch_norm(self._copy))
        self._take = Take(layout, single, Judge(limits, trainer.group), self._objective, is_short)
        failure = self._take.check_placed()
        return self._result(failure)

    def first(self, pairs: Pairs) -> Result:
        """The run's step on each of its parts of the global batches."""
        with fewer_collections(self._copy), without_tf32():
            return self._taken(pairs)

    def last(self, pairs: Pairs) -> Result:
        """The same from the state of a run that has trained, which then accumulates as before."""
        self.note = self._of_layout
        self._take.restart()
        apart = self._take.check_state()
        if apart is not None:
            return self._result(apart)
        self._count_as_layout()
        if self._take.layout.optimizers is None:
            return self.first(pairs)
        with self._take.layout.optimizers.restarted():
            return self.first(pairs)

    def _count_as_layout(self) -> None:
        """Give the single device the numbers that modules of the layout have counted in all steps so far."""
        layout, single = self._take.layout, self._take.single.trainer
        counted = {at: number for at, number in _counts(layout).items() if self._counts.get(at) != number}
        counted = layout.group.complete(counted)
        for part in parts(single.placed.module):
            for key, own in vars(part.module).items():
                vars(part.module)[key] = counted.get(f"{part.name}: {key}", own)

    def _taken(self, pairs: Pairs) -> Result:
        for batch, part in pairs:
            if not self.note:
                try:
                    failure = self._take.step(batch, part)
                    if failure is None and self._rows_are_apart:
                        failure = self._take.check_window()
                except SingleDeviceError as raised:
                    self.note = f"not compared: a single device does not compute it: {raised.cause}"
                else:
                    if failure:
                        return self._result(failure)
                    continue
            self._take.layout.step(part)
        self._take.release()
        return self._result()

    def _result(self, failure: Failure | None = None) -> Result:
        take, located = self._take, Found()
        if failure is not None and (why_not := take.undecided(failure)):
            self.note, failure = why_not, None
        if failure is not None:
            located = Locator(take, failure, self._copy).find()
        notes = [self.note] if self.note else [*take.uncompared(), *take.notes]
        failed = failure.worst if failure is not None else None
        steps = 0 if self.note else take.compared
        worst = take.judge.of_all_ranks()
        return Result(self._dtype, steps, worst, notes, failed, located.text, located.module or "")


def _counts(trainer: Trainer) -> dict[str, int | float]:
    """The numbers in attributes of the user's modules, as ``module: attribute``."""
    return {
        f"{part.name}: {key}": number
        for part in parts(trainer.placed.module)
        if is_users(part.module)
        for key, number in vars(part.module).items()
        if type(number) in (int, float)
    }


def own_mode(model: nn.Module, chunks: Chunks, layout: Trainer, compared: Mode | None) -> tuple[Mode, str]:
    """How a single device computes what the run does in training mode, and why it cannot be compared.

    What a user's layout does by definition is that of the mode in which it was compared.
    """
    has_draws = draws(model)
    if not has_draws and (chunks.are_synchronized or not has_batch_norm(model)):
        return Mode(), ""
    if has_draws and (not layout.placed.is_on_host or chunks.are_synchronized):
        return Mode(), OTHER_NUMBERS
    if chunks.is_known:
        return Mode(in_chunks=True), "" if chunks.draws_alike or not has_draws else OTHER_NUMBERS
    if compared is None:
        return Mode(), "batch norms and random layers of the layout were not compared in training mode"
    if has_draws and (compared.note or not chunks.draws_alike):
        return Mode(), OTHER_NUMBERS
    return Mode(in_chunks=compared.in_chunks), ""


def base_tolerance(dtype: torch.dtype, autocast: str) -> tuple[float, float]:
    """(errors that are rounding, what of a kind is negligible) in the narrowest type of a run."""
    narrowest = min((dtype, getattr(torch, autocast or "float64")), key=lambda each: -torch.finfo(each).eps)
    eps = torch.finfo(narrowest).eps
    if narrowest in TOLERANCE:
        return TOLERANCE[narrowest], NEGLIGIBLE[narrowest]
    return EPS * eps, min(NEGLIGIBLE[torch.bfloat16], 100 * eps)
