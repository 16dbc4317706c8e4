"""Steps: the steps of a placed model, followed. They are those of a run; only who looks on is new.

Steps(prepared, placed)    a layout, on tensors with data or without
.take(batch)               two optimizer steps; returns what the second needed
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from dpexp import devices, tensors
from dpexp.data.batch import Batch
from dpexp.engine.prepared import Prepared
from dpexp.measurement.collectives import CountCollectives
from dpexp.measurement.step_profile import CountFlops
from dpexp.plan.kernels import accelerator_kernels, unread_numbers, update_together
from dpexp.plan.memory import ModuleTrace, Peak, StorageLog
from dpexp.strategies.module_calls import module_calls
from dpexp.strategies.placed import Placed, StepObserver
from dpexp.training.optimizer_state import keeper
from dpexp.training.trainer import Trainer

LOSS, OPTIMIZER = "(loss)", "(optimizer)"
"""What computes where no module does."""
MOST = 4
"""So many times as many operators as the batch before may have needed."""


@dataclass(frozen=True)
class Needed:
    """What steps needed: the peak of each device; what this process sent and computed in the last one.

    ``flops`` are those of each device and type of numbers. ``uncounted`` are operators without a formula.
    """

    peaks: dict[str, Peak]
    sent: dict[str, int]
    flops: dict[tuple[str, str], int]
    uncounted: tuple[str, ...]


class Steps:
    """The steps of one placed model. ``is_accelerator``: computed as on one, on whatever device.

    Of ``accumulate`` batches that have one optimizer step two are taken, and the others are like the second.
    """

    def __init__(self, prepared: Prepared, placed: Placed, is_accelerator: bool) -> None:
        self._placed, self._is_accelerator = placed, is_accelerator
        self._objective = prepared.data.objective.copied()
        placed.module.train(prepared.strategy.trains)
        choice = prepared.optimizer
        self._batches = prepared.accumulate
        if choice is not None:
            choice = replace(choice, accumulate=min(2, choice.accumulate))
        self._trainer = Trainer(placed, self.loss, choice, prepared.autocast, prepared.group, must_train=True)
        optimizers = self._trainer.optimizers
        for member in optimizers.members if optimizers is not None and is_accelerator else ():
            update_together(keeper(member))
        self._log = StorageLog()

    @contextmanager
    def kernels(self) -> Iterator[None]:
        """Inside, what the devices would compute with."""
        with unread_numbers(), accelerator_kernels() if self._is_accelerator else nullcontext():
            yield

    def take(self, batch: Batch) -> Needed:
        """Two optimizer steps with this batch, and what the second needed.

        In the first, optimizers make their state, and DTensor learns the shapes of operators by calling them.
        Raises OverflowError where the model's operators are so many more than those of the batch before, as
        of one that computes row by row: a search for the most rows would take hours.
        """
        log, trace, before = self._log, ModuleTrace(self._log), self._log.operators
        with log, self.kernels(), module_calls(self._placed.module, trace.entered, trace.left):
            log.label("parameters", [*self._placed.module.parameters(), *self._placed.module.buffers()])
            log.label("inputs", (batch.inputs, batch.targets))
            self._update(batch)
            since = len(log.changes)
            sent, flops, uncounted = self._update(batch)
            log.check_operators()
            log.most_operators = log.operators + MOST * (log.operators - before)
        peaks = {device: log.peak(device, since) for device in log.devices}
        return Needed(peaks, dict(sent), dict(flops), tuple(sorted(uncounted)))

    def _update(self, batch: Batch) -> tuple[Counter[str], Counter[tuple[str, str]], set[str]]:
        """One optimizer step: what was sent and computed for it."""
        sent, flops, uncounted = Counter[str](), Counter[tuple[str, str]](), set[str]()
        for number in range(min(2, self._batches)):
            times = self._batches - 1 if number else 1
            with CountCollectives() as collectives, _FlopsByType() as counted:
                self._trainer.step(batch, _Labels(self._log, self._placed))
            self._log.is_updating = False
            self._label_states()
            for row in collectives.rows():
                sent[row["what"]] += row["bytes"] * times
            flops.update({key: count * times for key, count in counted.by_type.items()})
            uncounted |= counted.uncounted
        return sent, flops, uncounted

    def _label_states(self) -> None:
        optimizers = self._trainer.optimizers
        for _, _, state in optimizers.states() if optimizers is not None else ():
            self._log.label("optimizer", state)

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        """A scalar, as ``Objective.loss``."""
        self._log.label("inputs", targets)
        self._objective, loss = self._objective.probed(outputs, targets)
        return loss


class _Labels(StepObserver):
    """Says what the storages are that a step has made."""

    def __init__(self, log: StorageLog, placed: Placed) -> None:
        self._log, self._placed = log, placed

    def forward_ended(self, outputs: Any) -> None:
        self._log.module = LOSS

    def backward_ended(self) -> None:
        gradients = [each.grad for each in self._placed.module.parameters() if each.grad is not None]
        self._log.label("gradients", gradients)
        self._log.module, self._log.is_updating = OPTIMIZER, True


class _FlopsByType(CountFlops):  # type: ignore[no-untyped-call]
    """``by_type`` has those of each (device, type of numbers)."""

    def __init__(self) -> None:
        super().__init__()
        self.by_type = Counter[tuple[str, str]]()

    def counted(self, func: Any, args: Any, kwargs: Any) -> Any:
        before = self.total
        outputs = super().counted(func, args, kwargs)
        if self.total > before:
            first = next(tensors.walk(outputs))
            kind = str(first.dtype).removeprefix("torch.")
            self.by_type[devices.label(first.device), kind] += self.total - before
        return outputs
