"""Replay: one of the run's steps again, on a single device that rounds otherwise, or in float64.

Each ``draw`` is another way to round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch

from dpexp.data.batch import Batch
from dpexp.training.optimizer_choice import OptimizerFactory
from dpexp.training.trainer import Trainer
from dpexp.verification.comparison import in_dtype, on_host
from dpexp.verification.limits.norms import Tensors
from dpexp.verification.limits.rounding import OtherwiseRounded, OtherwiseRoundedTrainer
from dpexp.verification.own_steps.rows import RandomStates, set_random_states
from dpexp.verification.own_steps.state import State, give_gradients
from dpexp.verification.steps.model_copy import copied
from dpexp.verification.steps.recorder import Step, computed

Single = TypeVar("Single", bound=Trainer)


@dataclass(frozen=True)
class Replay:
    """Of a step that begins with the state ``before`` and these random numbers; ``bits`` are moved."""

    reference: Trainer
    optimizer: OptimizerFactory | None
    autocast: str
    dtype: torch.dtype
    before: State
    random: RandomStates
    bits: int

    def step(self, batch: Batch, draw: int | None) -> tuple[Step, Trainer]:
        """What is computed before the optimizer, and by what."""
        rounded = self._otherwise(draw)
        return computed(rounded, batch, with_loss=True), rounded

    def exact_step(self, batch: Batch) -> tuple[Step, Trainer] | None:
        """The same in float64, from the same state; None where the model does not compute in it."""
        exact = self._loaded(Trainer, torch.float64, "")
        try:
            return computed(exact, in_dtype(batch, torch.float64), with_loss=True), exact
        except (RuntimeError, NotImplementedError, TypeError):  # of operators that have no float64
            return None

    def updated(self, gradients: Tensors, draw: int) -> Trainer:
        """After what the optimizer makes of these gradients."""
        rounded = self._otherwise(draw)
        give_gradients(rounded, gradients)
        with OtherwiseRounded(draw, self.bits):
            rounded.update()
        return rounded

    def _otherwise(self, draw: int | None) -> Trainer:
        rounded = self._loaded(OtherwiseRoundedTrainer, self.dtype, self.autocast)
        rounded.draw, rounded.bits = draw, self.bits
        return rounded

    def _loaded(self, kind: type[Single], dtype: torch.dtype, autocast: str) -> Single:
        model = copied(self.reference.placed.module, dtype)
        single = kind(on_host(model), self.reference.loss, self.optimizer, autocast)
        with torch.no_grad():
            self.before.load(single)
        set_random_states(self.random)
        return single
