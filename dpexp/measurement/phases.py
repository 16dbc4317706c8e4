"""Phases: steps whose phases a timer records, in a pass of their own, because recording costs overlap."""

import time
from collections.abc import Iterable

from dpexp.data.batch import Batch
from dpexp.training.trainer import Trainer

LEAST_STEPS = 3
"""So many steps are timed, however long they take."""


def time_phases(trainer: Trainer, batches: Iterable[Batch], seconds: float) -> None:
    """Train on the batches while the timer of the placed model records; ends after so many seconds.

    Every rank must call this; all end after the same step.
    """
    group, timer, started = trainer.group, trainer.placed.timer, time.perf_counter()
    for number, batch in enumerate(batches, 1):
        group.barrier()
        with timer.step():
            trainer.step(batch)
        is_late = number >= LEAST_STEPS and time.perf_counter() - started > seconds
        if any(group.all_gather(is_late)):
            break
