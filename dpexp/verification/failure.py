"""Failure: the first step that differs, and the errors that end a take."""

from __future__ import annotations

from dataclasses import dataclass, field

from dpexp.data.batch import Batch
from dpexp.verification.compare import Difference, Tensors
from dpexp.verification.recorder import Step


@dataclass
class Failure:
    """The first step that differs, and what both sides computed in it; or ``text`` says all."""

    worst: Difference
    batch: Batch = field(default_factory=lambda: Batch((), None, 0, 0))
    found: Step = field(default_factory=Step)
    expected: Step = field(default_factory=Step)
    text: str = ""
    before: Tensors = field(default_factory=dict)
    """The parameters from which an optimizer's step began that differs."""
    in_eval_mode: bool = False
    where: str = ""
    """The begin of the message, where the batch is none of the run's."""
    hint: str = ""
    """What is known of the cause before the difference is located."""


class SingleDeviceError(Exception):
    """The single device cannot compute the step, in this type, say; or no layout computes the same."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class NonfiniteError(RuntimeError):
    """The loss of a single device is not finite, so that no layout can be compared with it."""


class DiffersError(Exception):
    """Ends the step of the layout before its optimizer."""

    def __init__(self, failure: Failure) -> None:
        super().__init__()
        self.failure = failure
