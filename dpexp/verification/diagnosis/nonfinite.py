"""Nonfinite: a single device whose loss is NaN or infinite, with which no layout can be compared."""

import math
from collections import Counter
from typing import Any

from dpexp.config.ranges import plural
from dpexp.data.batch import Batch
from dpexp.tensors import walk
from dpexp.verification.recorder import Step


class NonfiniteError(RuntimeError):
    """The loss of a single device is not finite: in which step, and where it began."""


def check_finite(computed: Step, batch: Batch, step: int) -> None:
    """Raises NonfiniteError if the single device's loss in this step (from 1) is not finite."""
    if computed.loss is None or math.isfinite(computed.loss):
        return
    advice = ": try a smaller learning rate" if step > 1 else ""
    raise NonfiniteError(
        f"the loss of a single device is {computed.loss} in step {step} of the verification "
        f"({plural(batch.rows, 'row')}); "
        f"the first NaN or infinity comes from {_source(computed, batch)}{advice}"
    )


def _source(computed: Step, batch: Batch) -> str:
    """The inputs, the first module whose output is not finite, the targets, or the loss."""
    if not _is_finite(batch.inputs):
        return "the inputs"
    counts = Counter[tuple[str, int]]()
    for key in computed.modules:
        outputs = computed.calls[key][-1][counts[key]]
        if not _is_finite(outputs):
            return f"module '{key[0]}'" if key[0] else "the model itself"
        counts[key] += 1
    return "the loss" if _is_finite(batch.targets) else "the targets"


def _is_finite(value: Any) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in walk(value))
