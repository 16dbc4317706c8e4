"""Own steps: takes of the run's own trainer in its own type, its first steps and those after its last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import nn

from dpexp.copies import copied
from dpexp.data.batch import Batch
from dpexp.data.objective import Objective
from dpexp.devices import without_tf32
from dpexp.parallel.random_layers import draws_random_numbers
from dpexp.strategies.modules import parts
from dpexp.training.optimizers import OptimizerFactory
from dpexp.training.preserve import is_users
from dpexp.training.trainer import Trainer
from dpexp.verification.checks import checked_placed, checked_state, checked_window, undecided
from dpexp.verification.chunks import Chunks
from dpexp.verification.compare import Limits
from dpexp.verification.diagnosis.locate import Locator
from dpexp.verification.diagnosis.patterns import Found
from dpexp.verification.mode import OTHER_NUMBERS, Mode, has_batch_norm
from dpexp.verification.recorder import fewer_collections
from dpexp.verification.result import TOLERANCE, Result
from dpexp.verification.rounding import NEGLIGIBLE
from dpexp.verification.sides import Sides
from dpexp.verification.single_device import SingleDevice
from dpexp.verification.state import read_by_rows
from dpexp.verification.take import take_step
from dpexp.verification.touched_rows import touched_rows
from dpexp.verification.trial import SingleDeviceError, Trial, uncompared, worst_errors

Pairs: TypeAlias = Iterable[tuple[Batch, Batch]]
"""Global batches, and the part of each that the rank computes."""
FIRST = 4
"""So many of the run's first steps are compared; those that a short warm-up lacks come after the last.

Chosen: an optimizer has then begun from what its own steps have left, and a run waits little."""
EPS = 4
"""Errors up to so many eps of a narrow type are its rounding: of right layouts in bfloat16 half of one."""
OWN_STEPS = "its own training steps"
"""What is not compared of a run where a single device does not compute them."""


@dataclass(frozen=True)
class OwnSteps:
    """Steps of a run beside a single device. A ``note`` says why they cannot be compared.

    ``trial`` is what the ``model`` as placed has shown; ``counts`` are numbers in attributes of its modules.
    """

    sides: Sides
    model: nn.Module
    trial: Trial
    note: str
    counts: Mapping[str, int | float]
    rows_are_apart: bool

    @classmethod
    def of(
        cls,
        model: nn.Module,
        trainer: Trainer,
        objective: Objective,
        optimizer: OptimizerFactory | None,
        dtype: torch.dtype,
        autocast: str = "",
        compared: Mode | None = None,
    ) -> OwnSteps:
        """Those of the run's trainer; every rank must call this, before any step.

        ``model`` is a copy from before it was placed, in the run's type, which may have the touched rows of
        large tables. ``compared`` is the mode in which training mode was compared before.
        """
        single = SingleDevice(copied(model, dtype), optimizer, autocast)
        layout = read_by_rows(trainer, touched_rows(model))
        chunks = Chunks.of(layout.placed, trainer.group)
        mode, why_not = _own_mode(model, chunks, layout, compared)
        limits, is_short = Limits.of(dtype, *base_tolerance(dtype, autocast)), dtype != torch.float64
        sides = Sides(layout, objective, single, limits, chunks, mode, is_short or bool(autocast))
        note = f"not compared: {why_not}" if why_not else ""
        rows_are_apart = not (autocast or draws_random_numbers(model) or has_batch_norm(model))
        placed = checked_placed(sides, Trial())
        return cls(sides, model, placed, note, _counts(trainer), rows_are_apart)

    def first(self, pairs: Pairs) -> Result:
        """The run's step on each of its parts of the global batches, if the model as placed is right."""
        if self.trial.failure is not None:
            return self._result(self.trial, self.note)
        return self._taken(self.trial, pairs)

    def last(self, pairs: Pairs) -> Result:
        """The same from the state of a run that has trained, which then accumulates as before."""
        trial, _ = checked_state(self.sides, Trial())
        if trial.failure is not None:
            return self._result(trial, self.note)
        self._count_as_layout()
        optimizers = self.sides.layout.optimizers
        with optimizers.restarted() if optimizers is not None else nullcontext():
            return self._taken(trial, pairs)

    def _count_as_layout(self) -> None:
        """Give the single device the numbers that modules of the layout have counted in all steps so far."""
        layout, single = self.sides.layout, self.sides.single.trainer
        counted = {at: number for at, number in _counts(layout).items() if self.counts.get(at) != number}
        counted = layout.group.complete(counted)
        for part in parts(single.placed.module):
            for key, own in vars(part.module).items():
                vars(part.module)[key] = counted.get(f"{part.name}: {key}", own)

    def _taken(self, trial: Trial, pairs: Pairs) -> Result:
        note = self.note
        with fewer_collections(self.model), without_tf32():
            for batch, part in pairs:
                if not note:
                    try:
                        trial = take_step(self.sides, trial, batch, part)
                    except SingleDeviceError as raised:
                        note = f"not compared: a single device does not compute it: {raised.cause}"
                if note:
                    self.sides.layout.step(part)
                elif trial.failure is None and self.rows_are_apart:
                    trial = checked_window(self.sides, trial)
                if trial.failure is not None:
                    break
            return self._result(trial, note)

    def _result(self, trial: Trial, note: str) -> Result:
        sides, failure, located = self.sides, trial.failure, Found()
        if failure is not None and (why_not := undecided(sides, failure)):
            note, failure = why_not, None
        if failure is not None:
            located = Locator(sides, failure, self.model).find()
        usual = sides.single.dtype
        return Result(
            usual,
            0 if note else trial.compared,
            worst_errors(*sides.group.all_gather(dict(trial.errors))),
            [note] if note else [*uncompared(trial, sides.layout, usual), *trial.notes],
            failure.worst if failure is not None else None,
            located.text,
            located.module or "",
            gaps=[OWN_STEPS] if note else [],
        )


def _counts(trainer: Trainer) -> dict[str, int | float]:
    """The numbers in attributes of the user's modules, as ``module: attribute``."""
    return {
        f"{part.name}: {key}": number
        for part in parts(trainer.placed.module)
        if is_users(part.module)
        for key, number in vars(part.module).items()
        if type(number) in (int, float)
    }


def _own_mode(model: nn.Module, chunks: Chunks, layout: Trainer, compared: Mode | None) -> tuple[Mode, str]:
    """How a single device computes what the run does in training mode, and why it cannot be compared.

    What a user's layout does by definition is that of the mode in which it was compared.
    """
    has_draws = draws_random_numbers(model)
    if not has_draws and (chunks.are_synchronized or not has_batch_norm(model)):
        return Mode(), ""
    if has_draws and (not layout.placed.is_on_host or chunks.are_synchronized):
        return Mode(), OTHER_NUMBERS
    if chunks.is_known:
        return Mode(chunks=chunks), "" if chunks.draws_alike or not has_draws else OTHER_NUMBERS
    if compared is None:
        return Mode(), "batch norms and random layers of the layout were not compared in training mode"
    if has_draws and (compared.note or not chunks.draws_alike):
        return Mode(), OTHER_NUMBERS
    return Mode(chunks=chunks if compared.chunks is not None else None), ""


def base_tolerance(dtype: torch.dtype, autocast: str) -> tuple[float, float]:
    """(errors that are rounding, what of a kind is negligible) in the narrowest type of a run."""
    narrowest = min((dtype, getattr(torch, autocast or "float64")), key=lambda each: -torch.finfo(each).eps)
    eps = torch.finfo(narrowest).eps
    if narrowest in TOLERANCE:
        return TOLERANCE[narrowest], NEGLIGIBLE[narrowest]
    return EPS * eps, min(NEGLIGIBLE[torch.bfloat16], 100 * eps)
