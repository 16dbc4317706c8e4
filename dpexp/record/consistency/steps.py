"""Steps: how many there are and of how many rows, against config and data, and how long they take."""

import math
from collections.abc import Iterator
from datetime import datetime

from dpexp.config.ranges import plural
from dpexp.record.figures.phase_times import rows_of
from dpexp.record.figures.step_times import quartiles, wall_times
from dpexp.record.record import Record, present
from dpexp.record.view import RecordView

_ROUNDED_MS = 1e-5
FEWEST_SAMPLES = 10
"""Steps and phases of fewer samples are not compared with each other: a busy moment may be all of them."""

_BUSY = 10.0
"""So many times as long may a busy machine make all phase-timed steps; three times was seen."""


def batches_per_epoch(record: Record) -> int:
    """How many batches an epoch has, a smaller last one included; as many as a user's loader gives."""
    given: int | None = record.data.get("batches")
    return given or -(-int(record.data["samples"]) // int(record.config["batch_size"]))


def _lengths(record: Record) -> Iterator[str]:
    lengths = {name: len(values) for name, values in record.steps.items()}
    if len(set(lengths.values())) > 1:
        yield f"steps have {', '.join(f'{count} {name}' for name, count in lengths.items())}"
    config, size, samples = record.config, record.config.get("batch_size"), record.data.get("samples")
    if not size or record.status != "finished" or record.damage:
        return
    wanted, measured, epochs = config.get("steps"), len(record.steps["time_ms"]), config.get("epochs")
    if epochs and samples and measured != epochs * batches_per_epoch(record):
        yield f"steps are {measured}, but its config says --epochs {epochs}"
    if wanted and not epochs and measured != wanted:
        yield f"steps are {measured}, but its config says --steps {wanted}"


def _rows(record: Record) -> Iterator[str]:
    if not record.config.get("strategy"):
        return
    for number, rows in enumerate(record.steps["samples"]):
        expected = rows_of(record, number)
        if rows is not None and expected is not None and rows != expected:
            size, samples = record.config["batch_size"], record.data["samples"]
            yield (
                f"steps.samples has {plural(rows, 'row')} in step {number}, but config.batch_size {size} "
                f"and data.samples {samples} give {expected}"
            )
            return


def _values(record: Record) -> Iterator[str]:
    """Times are positive, and a run of dpexp ends with its first loss that is not finite."""
    if any(not 0 <= ms < math.inf for ms in present(record.steps["time_ms"])):
        yield "steps.time_ms has times that are negative or not finite"
    for number, (ms, wall_ms) in enumerate(zip(record.steps["time_ms"], wall_times(record), strict=False)):
        if ms is not None and wall_ms is not None and not ms - _ROUNDED_MS <= wall_ms < math.inf:
            yield f"steps.wall_ms is {wall_ms} in step {number}, but the step itself takes {ms} ms"
            break
    is_finished_run = record.config.get("strategy") and record.status == "finished"
    if is_finished_run and not all(map(math.isfinite, present(record.steps["loss"]))):
        yield "steps.loss is not finite, but its status is finished"
    for value in present(record.metrics.get("accuracy", ())):
        if not 0 <= value <= 1:
            yield f"metrics.accuracy is {value}, not a share"


def _wall_time(record: Record) -> Iterator[str]:
    """All steps, measured and phase-timed, lie between the run's start and its end."""
    is_run = bool(record.config.get("strategy"))  # the times of a program may be those of its end
    if not (is_run and record.started and record.ended):
        return
    wall_s = (datetime.fromisoformat(record.ended) - datetime.fromisoformat(record.started)).total_seconds()
    steps_s = sum(present(wall_times(record) or record.steps["time_ms"])) / 1e3
    phases_s = sum(row["end_us"] - row["start_us"] for row in record.timeline if row["phase"] == "step") / 1e6
    if steps_s + phases_s > wall_s + 0.001:
        yield (
            f"steps and timeline take {steps_s:.3g} and {phases_s:.3g} s, "
            f"but started and ended are {wall_s:.3g} s apart"
        )


def _longest_phase(record: Record) -> Iterator[str]:
    """No phase is many times as long as a step.

    Both are timed in passes of their own, on a machine that may do other things during one of them: three
    quarters of the steps are compared with the shortest sample of each phase.
    """
    view = RecordView(record)
    if view.usual is None or view.usual.n < FEWEST_SAMPLES:
        return
    _, _, most_ms = quartiles(view.usual.times)
    for name, times in view.phase_samples.items():
        if len(times) >= FEWEST_SAMPLES and min(times) > _BUSY * most_ms:
            yield (
                f"steps.time_ms is at most {most_ms:g} ms in three quarters of the steps, "
                f"but phases.{name} is at least {min(times):g} ms"
            )


RULES = (_lengths, _rows, _values, _wall_time, _longest_phase)
