"""Window: the batches whose gradients accumulate to one step of the optimizer, each with its state."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from dpexp.data.batch import Batch
from dpexp.verification.compare import Tensors, distance, magnitude, ratio
from dpexp.verification.mode import Mode
from dpexp.verification.recorder import Step
from dpexp.verification.single_device import SingleDevice
from dpexp.verification.state import State


@dataclass(frozen=True)
class Window:
    """``batches`` since the optimizer's latest step, each with the state before it."""

    batches: tuple[tuple[State, Batch], ...] = ()

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def state(self) -> State:
        """That before the latest batch."""
        return self.batches[-1][0]

    @property
    def batch(self) -> Batch:
        """The latest one."""
        return self.batches[-1][1]

    def followed_by(self, state: State, batch: Batch, gradients: Tensors) -> Window:
        """With one batch more: ``gradients`` are those of a single device so far.

        What no update changes between batches is in memory once.
        """
        if not state.batches or not self.batches:
            return Window((*(self.batches if state.batches else ()), (state, batch)))
        first = self.batches[0][0]
        before = [(replace(each, gradients={}), earlier) for each, earlier in self.batches]
        same = {n: each for n, each in first.parameters.items() if torch.equal(each, state.parameters[n])}
        parameters = {**state.parameters, **same}
        state = replace(state, parameters=parameters, optimizer=first.optimizer, gradients=gradients)
        return Window((*before, (state, batch)))

    def apart_from_one_batch(self, single: SingleDevice, mode: Mode) -> float:
        """How far the mean of its gradients is from that of one batch of all its rows, beside their size.

        Batches weigh by their rows. It is 0 for a loss that is a mean over rows, or a sum. Raises ValueError
        where the batches cannot be joined.
        """
        whole = Batch.joined([batch for _, batch in self.batches])
        first, _ = self.batches[0]
        before = first.without_gradients()  # of all, since a loss may keep something from call to call
        expected = single.step(before, whole, mode).gradients
        found, size = dict[str, torch.Tensor](), 0.0  # which may cancel
        for _, batch in self.batches:
            weight = 1.0 if before.objective.reduction == "sum" else batch.rows / whole.rows
            gradients = single.step(before, batch, mode).gradients
            size += weight * math.hypot(*map(magnitude, gradients.values()))
            for name, each in gradients.items():
                found[name] = found[name] + weight * each if name in found else weight * each
        apart = [
            distance(found[name], each) if name in found else math.inf for name, each in expected.items()
        ]
        return ratio(math.hypot(*apart), size)

    def replayed(
        self, single: SingleDevice, mode: Mode, draw: int | None = None, *, from_own: bool = False
    ) -> Step:
        """What a single device computes of all of them again, from the first on."""
        step = Step()
        for state, batch in self.batches:
            state = replace(state, gradients=step.gradients)
            step = single.step(state, batch, mode, draw, from_own=from_own)
        return step
