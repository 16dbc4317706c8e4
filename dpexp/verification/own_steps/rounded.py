"""Rounded: how far a single device is from itself in one of the run's steps, when it rounds otherwise.

Each ``draw`` is another way to round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from dpexp.data.batch import Batch
from dpexp.training.optimizer_choice import OptimizerFactory
from dpexp.training.trainer import Trainer
from dpexp.verification.comparison import on_host
from dpexp.verification.limits.compare import Noise
from dpexp.verification.limits.norms import Tensors
from dpexp.verification.limits.parts import Parts, parts_of
from dpexp.verification.limits.rounding import OtherwiseRounded, OtherwiseRoundedTrainer
from dpexp.verification.own_steps.rows import RandomStates, set_random_states
from dpexp.verification.own_steps.state import State, give_gradients
from dpexp.verification.steps.model_copy import copied
from dpexp.verification.steps.recorder import Step, computed, optimizer_numbers
from dpexp.verification.steps.step_parts import parts_of_step

Kinds = Mapping[str, Mapping[str, Parts]]


@dataclass(frozen=True)
class Rounded:
    """Of the step ``number``, which begins with the state ``before`` and these random ``numbers``."""

    reference: Trainer
    optimizer: OptimizerFactory | None
    autocast: str
    dtype: torch.dtype
    number: int
    before: State
    random: RandomStates

    def of_step(self, batch: Batch, expected: Step, draw: int) -> Noise:
        """Of what is computed before the optimizer."""
        rounded = self._trainer(draw)
        step = computed(rounded, batch, with_loss=True)
        buffers = parts_of(rounded.buffers(), self.reference.buffers())
        return self._apart(parts_of_step(step, expected) | {"buffers": buffers})

    def of_update(
        self, given: Step, updates: Callable[[Tensors, Tensors], Mapping[str, Parts]], draw: int
    ) -> Noise:
        """Of what the optimizer makes of the gradients ``given``."""
        rounded, expected = self._trainer(draw), self.reference.full_parameters()
        give_gradients(rounded, given.gradients)
        with OtherwiseRounded(draw):
            rounded.update()
        found = rounded.full_parameters()
        return self._apart(
            {
                "parameters": parts_of(found, expected),
                "updates": updates(found, expected),
                "optimizer": parts_of(optimizer_numbers(rounded), optimizer_numbers(self.reference)),
            }
        )

    def _trainer(self, draw: int) -> OtherwiseRoundedTrainer:
        model = copied(self.reference.placed.module, self.dtype)
        rounded = OtherwiseRoundedTrainer(on_host(model), self.reference.loss, self.optimizer, self.autocast)
        rounded.draw = draw
        with torch.no_grad():
            self.before.load(rounded)
        set_random_states(self.random)
        return rounded

    def _apart(self, kinds: Kinds) -> Noise:
        return {
            (kind, self.number, name): each.apart
            for kind, of_kind in kinds.items()
            for name, each in of_kind.items()
        }
