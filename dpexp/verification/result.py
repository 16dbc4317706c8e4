"""Result: what verification has found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from dpexp.config.alike import listed
from dpexp.config.ranges import plural
from dpexp.verification.limits.compare import Difference, worst
from dpexp.verification.modes.mode import IN_EVAL_MODE, Mode, RowsTogether

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
"""Largest relative error that counts as rounding, by the dtype of the comparison."""


class VerificationError(RuntimeError):
    """The layout does not compute what a single device computes."""

    @classmethod
    def of(cls, layout: str, tolerance: float | None, cause: str, note: str = "") -> VerificationError:
        """The error of a layout that failed for this cause."""
        limit = f" (allowed {tolerance:g})" if tolerance is not None else ""
        shown = f" ({note})" if note else ""
        return cls(f"{layout} does not compute what a single device computes{limit}: {cause}{shown}")


@dataclass(frozen=True)
class Result:
    """The worst difference of each kind, what differs by nature (``notes``), and what ``failed``, and why.

    ``mode`` is the one in which the model was compared, ``steps`` in training mode are counted apart;
    ``mode_in_training`` is the one of these, if there are any.
    Unreached are modules that no step has called, and parameters that never had a gradient.
    """

    worst: Mapping[str, Difference]
    steps: int
    notes: Sequence[str] = ()
    cause: str = ""
    mode: Mode = field(default_factory=RowsTogether)
    dtype: torch.dtype = torch.float64
    failed: Difference | None = None
    training_steps: int = 0
    mode_in_training: Mode | None = None
    unreached_modules: Sequence[str] = ()
    unreached_parameters: Sequence[str] = ()

    def __str__(self) -> str:
        """The summary: the verdict, the largest error of each kind, and what is not covered or is noted."""
        count = plural(self.steps + self.training_steps, "step")
        steps = f"{count} in {str(self.dtype).removeprefix('torch.')}"
        verdict = f"NOT THE SAME: {self.cause}" if self.cause else "the same as on a single device"
        errors = [
            f"  {kind:10}  {each.error:.1e}, limit {each.limit:.0e}{each.tensor and f', in {each.tensor}'}"
            for kind, each in self.worst.items()
        ]
        unreached = (
            ("modules that are never called", self.unreached_modules),
            ("parameters that never have a gradient", self.unreached_parameters),
        )
        gaps = [f"  not compared: {what}: {listed(names)}" for what, names in unreached if names]
        return "\n".join([f"{verdict}; {steps}", *errors, *gaps, *(f"  {note}" for note in self.notes)])

    @property
    def passed(self) -> bool:
        """Whether every kind equals the single device's to rounding."""
        return not self.cause

    @property
    def is_empty(self) -> bool:
        """Whether nothing could be compared, so that nothing is shown."""
        return self.passed and not (self.steps or self.training_steps)

    @property
    def tolerance(self) -> float:
        """The limit of what failed, or else the largest: larger than usual where rounding was measured."""
        if self.failed is not None:
            return self.failed.limit
        limits = [each.limit for each in self.worst.values() if math.isfinite(each.limit)]
        return max(limits, default=TOLERANCE[torch.float64])

    @property
    def largest(self) -> Difference | None:
        """The difference with the largest error of all kinds."""
        return max(self.worst.values(), key=lambda each: each.error, default=None)

    def error(self, kind: str) -> float | None:
        """The relative error of one kind; None if there was nothing to compare."""
        return self.worst[kind].error if kind in self.worst else None

    def noted(self, note: str) -> Result:
        """The same with another note."""
        return replace(self, notes=[*self.notes, note])

    def with_training(self, training: Result) -> Result:
        """This result, and that of steps in training mode."""
        kinds = dict.fromkeys([*self.worst, *training.worst])
        both = {
            kind: worst([each.worst[kind] for each in (self, training) if kind in each.worst])
            for kind in kinds
        }
        own = [note.partition(": ")[0] if note.startswith(IN_EVAL_MODE) else note for note in self.notes]
        added = [f"in training mode, chunk by chunk: {plural(training.steps, 'step')} more", *training.notes]
        notes = [*own, *(note for note in added if note not in self.notes)]
        cause = f"in training mode, {training.cause}" if training.cause else ""
        return replace(
            self,
            worst=both,
            notes=notes,
            cause=cause,
            failed=training.failed,
            training_steps=training.steps,
            mode_in_training=training.mode,
            unreached_modules=[each for each in self.unreached_modules if each in training.unreached_modules],
            unreached_parameters=[
                each for each in self.unreached_parameters if each in training.unreached_parameters
            ],
        )
