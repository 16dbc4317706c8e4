"""Steps: the time of each step between idle devices."""

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from dpexp import devices
from dpexp.data.batch import Batch
from dpexp.training.trainer import Trainer


class TimedStep(NamedTuple):
    """``loss`` of this rank's rows, on its accelerator if it has one; ``weight`` in that of the global batch.

    ``rows`` are those of the global batch. ``wall_ms`` is the time since the end of the step before, with the
    wait for the batch and what the caller did between the two.
    """

    ms: float
    wall_ms: float
    loss: float | torch.Tensor
    weight: float
    rows: int


def timed_steps(trainer: Trainer, batches: Iterable[Batch]) -> Iterator[TimedStep]:
    """Train on the batches, and time each step; its caller works between two steps."""
    clock, step, used = time.perf_counter, trainer.step, trainer.placed.devices
    synchronizes = any(device.type != "cpu" for device in used)
    loss_on_host = trainer.placed.outputs_on_host
    before = clock()
    for batch in batches:
        if synchronizes:
            devices.synchronize(used)
        start = clock()
        loss = step(batch)
        if synchronizes:
            devices.synchronize(used)
        end = clock()
        value = loss.item() if loss_on_host else loss
        yield TimedStep((end - start) * 1e3, (end - before) * 1e3, value, batch.weight, batch.global_rows)
        before = end
