"""The loop: verify -> observe -> warm up -> time steps -> time phases.

``prepare`` does all that can refuse a run before it opens; ``execute`` runs it and tells a Journal
everything that it learns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dpexp.distributed import SigtermHandler
from dpexp.engine.observations import Observations, describe, devices_of
from dpexp.engine.prepare import Prepared, prepare, prepare_together
from dpexp.engine.trainer import Progress, RunError, Silent, Trainer
from dpexp.engine.verify import NOT_CHECKED, VerificationError, verify
from dpexp.record import Journal
from dpexp.timing import Timer

__all__ = [
    "Observations",
    "Prepared",
    "Progress",
    "RunError",
    "Silent",
    "Trainer",
    "describe",
    "devices_of",
    "execute",
    "prepare",
    "prepare_together",
]


def execute(
    prepared: Prepared,
    journal: Journal,
    progress: Progress,
    on_flush: Callable[[], None],
    stop: SigtermHandler | None = None,
) -> None:
    """Run it. Facts go to the journal as they are known; ``on_flush`` is called when there is more to read.

    It goes on from the newest of the run's snapshots, where there is one.
    Raises VerificationError, RunError, and whatever the model raises.
    """
    _verify(prepared, journal, progress)
    timer = Timer(tuple(device for device in prepared.selection.used))
    placed = prepared.strategy.place(prepared.model, prepared.selection.used, timer)
    observations = Observations(prepared, placed)
    journal.set(devices=devices_of(prepared, placed), device_map=observations.device_map())
    progress.begin("observe")
    journal.set(shapes=observations.shapes())
    journal.flush()
    on_flush()
    trainer = Trainer(
        prepared, placed, timer, journal, progress, on_flush, observations, stop or SigtermHandler()
    )
    trainer.warm_up()
    trainer.resume()
    trainer.time_steps()
    trainer.record_digests()
    trainer.time_phases()
    journal.flush()


def _verify(prepared: Prepared, journal: Journal, progress: Progress) -> None:
    config = prepared.config
    if not config.check:
        journal.set(verification=NOT_CHECKED.to_dict())
        return
    progress.begin("verify")
    batch = next(prepared.batches(0))
    result = verify(prepared.model, prepared.strategy, prepared.selection.used, prepared.data, batch)
    if prepared.note:
        result = replace(result, note="; ".join(filter(None, (result.note, prepared.note))))
    journal.set(verification=result.to_dict())
    if not result.passed:
        raise VerificationError(
            f"{config.strategy} does not compute what a single device computes: relative error of outputs "
            f"{result.output_error}, of gradients {result.gradient_error}, allowed {result.tolerance:g}"
            f"{f' ({result.note})' if result.note else ''}. --no-check runs it all the same"
        )
