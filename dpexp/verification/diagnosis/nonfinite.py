"""Nonfinite: a single device whose loss is NaN or infinite, with which no layout can be compared."""

import math
from collections import Counter
from typing import Any

from dpexp.config.errors import plural
from dpexp.data.batch import Batch
from dpexp.tensors import walk
from dpexp.verification.recorder import Step


class NonfiniteError(RuntimeError):
    """The loss of a single device is not finite: in which step, and where it began."""


def check_finite(computed: Step, batch: Batch, step: int) -> None:
    """Raises NonfiniteError if the single device's loss in this step (from 1) is not finite."""
    if computed.loss is None or math.isfinite(computed.loss):
        return
    counts, calls = Counter[tuple[str, int]](), list[tuple[str, Any]]()
    for key in computed.modules:
        name = f"module '{key[0]}'" if key[0] else "the model itself"
        calls.append((name, computed.calls[key][-1][counts[key]]))
        counts[key] += 1
    values = [("the inputs", batch.inputs), *calls, ("the targets", batch.targets)]
    source = next((name for name, value in values if not _is_finite(value)), "the loss")
    advice = ": try a smaller learning rate" if step > 1 else ""
    raise NonfiniteError(
        f"the loss of a single device is {computed.loss} in step {step} of the verification "
        f"({plural(batch.rows, 'row')}); the first NaN or infinity comes from {source}{advice}"
    )


def _is_finite(value: Any) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in walk(value))
