"""Failure: the first step that differs, and the errors that end a take."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from dpexp.data.batch import Batch
from dpexp.verification.compare import Difference, Limits, Tensors
from dpexp.verification.mode import Mode
from dpexp.verification.recorder import Step
from dpexp.verification.state import State


@dataclass(frozen=True)
class Failure:
    """The first step that differs, and what both sides computed in it; or ``text`` says all.

    ``state`` is that before the batch. An optimizer's step that differs began from the parameters ``before``,
    and a single device has made those ``after``, in the ``type_of_update`` inside, where that is known.
    ``where`` begins the message, for a batch that is none of the run's; ``hint`` is what is known of the
    cause before the difference is located.
    """

    worst: Difference
    batch: Batch = field(default_factory=lambda: Batch((), None, 0, 0))
    found: Step = field(default_factory=Step)
    expected: Step = field(default_factory=Step)
    text: str = ""
    limits: Limits = field(default_factory=lambda: Limits(0.0))
    mode: Mode = field(default_factory=Mode)
    state: State | None = None
    before: Tensors = field(default_factory=dict)
    after: Tensors = field(default_factory=dict)
    type_of_update: torch.dtype | None = None
    in_eval_mode: bool = False
    where: str = ""
    hint: str = ""


class SingleDeviceError(Exception):
    """The single device cannot compute the step, in this type, say; or no layout computes the same."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class NonfiniteError(RuntimeError):
    """The loss of a single device is not finite, so that no layout can be compared with it."""
