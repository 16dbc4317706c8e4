"""The loop: verify -> observe -> warm up -> time steps -> time phases.

``prepare`` does all that can refuse a run before it opens; ``execute`` runs it and tells a Journal
everything that it learns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dpexp.distributed import Stop
from dpexp.prepare import Prepared, prepare, prepare_together
from dpexp.record import Journal
from dpexp.seen import Seen, describe, devices_of
from dpexp.timing import Timer
from dpexp.trial import Progress, RunError, Silent, Trial
from dpexp.verify import NOT_CHECKED, VerificationError, verify

__all__ = [
    "Prepared",
    "Progress",
    "RunError",
    "Seen",
    "Silent",
    "Trial",
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
    stop: Stop | None = None,
) -> None:
    """Run it. Facts go to the journal as they are known; ``on_flush`` is called when there is more to read.

    It goes on from the newest of the run's snapshots, where there is one.
    Raises VerificationError, RunError, and whatever the model raises.
    """
    _verify(prepared, journal, progress)
    timer = Timer(tuple(device for device in prepared.selection.used))
    placed = prepared.strategy.place(prepared.model, prepared.selection.used, timer)
    seen = Seen(prepared, placed)
    journal.set(devices=devices_of(prepared, placed), device_map=seen.device_map())
    progress.begin("observe")
    journal.set(shapes=seen.shapes())
    journal.flush()
    on_flush()
    trial = Trial(prepared, placed, timer, journal, progress, on_flush, seen, stop or Stop())
    trial.warm_up()
    trial.go_on()
    trial.time_steps()
    trial.take_stock()
    trial.time_phases()
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
