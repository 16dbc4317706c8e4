"""Steps: the time of each step between idle devices, and further ones under ``torch.profiler``.

    --profile    warm up | step 1 | step 2 | step 3      each between idle devices, all on the same batch

The profiled steps come last, after everything that a run records of its training, and so change none of it.
Every rank takes them, so that none waits for one that is slower for it; the first rank's profile is kept.
"""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from dpexp import devices
from dpexp.config.errors import describe
from dpexp.data.batch import Batch
from dpexp.record.files import PROFILE_TABLE, PROFILE_TRACE, private_files
from dpexp.record.record import Row
from dpexp.training.trainer import Trainer

WARM_UP, STEPS = 1, 3
COSTLIEST = 30


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


def profile_steps(trainer: Trainer, batches: Sequence[Batch], folder: Path) -> Row:
    """A step on each batch; the trace and the table of the last ``STEPS`` go to the folder.

    Returns ``work.profile`` of a Record: how many ``steps``, or a ``note`` of what failed on all ranks. An
    error that not every rank has is raised, because the others wait for this rank.
    """
    used = trainer.placed.devices
    is_cuda = any(device.type == "cuda" for device in used)
    try:
        with _profiler(is_cuda=is_cuda) as profiler:
            for batch in batches:
                trainer.step(batch)
                devices.synchronize(used)
                profiler.step()
    except Exception as error:  # of any kind: a user's model may not stand to be observed
        if not trainer.group.all_failed("profile of operators", type(error).__name__):
            raise
        return {"note": f"not profiled: {describe(error)}"}
    if not trainer.group.is_first:
        return {}
    costliest = "self_cuda_time_total" if is_cuda else "self_cpu_time_total"
    try:
        with private_files():
            profiler.export_chrome_trace(str(folder / PROFILE_TRACE))
            (folder / PROFILE_TABLE).write_text(profiler.key_averages().table(costliest, COSTLIEST))
    except OSError as error:
        return {"note": f"the profile could not be written: {error.strerror}"}
    return {"steps": STEPS}


def _profiler(*, is_cuda: bool) -> profile:
    """Of the operators of all threads, those of replicas included, and of CUDA's kernels."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it writes of its start and end to stderr
    return profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] * is_cuda)],
        schedule=schedule(wait=0, warmup=WARM_UP, active=STEPS, repeat=1),
        experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True),
        acc_events=True,  # else torch 2.11 warns
    )
