"""Predicted work: the floating-point operations of a step whose tensors have no data.

They are counted as in a run (``step_profile``), which computes the same operators of the same shapes.
"""

from contextlib import suppress

import torch

from dpexp.data.batch import Batch
from dpexp.measurement.live_storages import LiveStorages
from dpexp.record.record import Row
from dpexp.strategies.placed import Loss, Placed, StepEndedError, StepObserver

_OF_FAKE_TENSORS = "prim.device"
"""An operator that only tensors without data call."""


class _CountFlops(StepObserver):
    """Counts until the backward ends, or the loss of a step that does not train."""

    def __init__(self, live: LiveStorages) -> None:
        self._live = live
        self.flops: dict[str, int] = {}

    def loss_ended(self, loss: torch.Tensor) -> None:
        self.flops["forward"] = self._live.flops

    def backward_ended(self) -> None:
        self.flops["backward"] = self._live.flops - self.flops["forward"]
        raise StepEndedError


def predicted_work(placed: Placed, batch: Batch, loss: Loss, *, trains: bool) -> Row:
    """``work`` of a Record, of a step of this batch; both are without data, in the mode that makes them.

    Empty where the model or the loss does not stand to be predicted: a run of it is no worse for that.
    """
    placed.module.train(trains)
    live = LiveStorages((), placed.output_device, len(placed.devices) == 1)
    counted = _CountFlops(live)
    try:
        with suppress(StepEndedError), live:
            placed.step(batch, loss, _no_update if trains else None, observer=counted)
    except Exception:  # of any kind: a user's model or loss may look at values, which there are none of
        return {}
    if not live.is_complete:
        return {}
    not_counted = sorted(live.not_counted - {_OF_FAKE_TENSORS})
    return {"rows": batch.global_rows, "flops": counted.flops, "not_counted": not_counted}


def _no_update() -> None:
    """The step ends before it."""
