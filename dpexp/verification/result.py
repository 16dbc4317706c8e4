"""Result: what takes of a layout have found, as text and as an entry of the Record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from dpexp.config.errors import VerificationError
from dpexp.config.words import listed, plural
from dpexp.record.record import Row
from dpexp.verification.compare import Difference
from dpexp.verification.mode import Mode

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
"""Largest relative error that counts as rounding, by the dtype of the comparison.

Right layouts differ by 3.5e-16 at most in float64 (``experiments/equivalence``) and by 1e-7 to 3e-7 in
float32, wrong ones by 1e-3 and more."""

KINDS = {
    "output_error": "outputs",
    "loss_error": "loss",
    "gradient_error": "gradients",
    "buffer_error": "buffers",
    "parameter_error": "parameters",
    "update_error": "updates",
    "optimizer_error": "optimizer",
}
"""The kinds of tensors that are compared, by the name of their error in a Record."""


@dataclass(frozen=True)
class Result:
    """The worst difference of each kind over these steps, what ``failed``, the ``module`` in which it begins
    and why, and what is to be noted.

    Steps in training mode that were compared apart, chunk by chunk, have a ``mode_in_training``. Unreached
    are parameters that never had a gradient. Gaps are what of the model was not compared, in a few words.
    """

    dtype: torch.dtype
    steps: int = 0
    worst: Mapping[str, Difference] = field(default_factory=dict)
    notes: Sequence[str] = ()
    failed: Difference | None = None
    cause: str = ""
    module: str = ""
    training_steps: int = 0
    mode_in_training: Mode | None = None
    unreached_parameters: Sequence[str] = ()
    gaps: Sequence[str] = ()

    def __str__(self) -> str:
        """The summary: the verdict, the largest error of each kind, and what is not covered or is noted."""
        count = plural(self.steps + self.training_steps, "step")
        but_for = f", but for {listed(self.gaps)}" if self.gaps else ""
        verdict = f"NOT THE SAME: {self.cause}" if self.cause else f"the same as on a single device{but_for}"
        errors = [
            f"  {kind:10}  {each.error:.1e}, limit {each.limit:.0e}{each.tensor and f', in {each.tensor}'}"
            for kind, each in self.worst.items()
        ]
        names = listed(self.unreached_parameters)
        gaps = [f"  not compared: parameters that never have a gradient: {names}"] if names else []
        notes = (f"  {note}" for note in self.notes)
        return "\n".join([f"{verdict}; {count} in {_name(self.dtype)}", *errors, *gaps, *notes])

    @property
    def passed(self) -> bool | None:
        """Whether every kind equals the single device's to rounding; None where nothing could be compared."""
        if self.cause:
            return False
        return True if self.steps or self.training_steps else None

    @property
    def tolerance(self) -> float:
        """The limit of what failed, or else the largest: larger than usual where rounding was measured."""
        if self.failed is not None:
            return self.failed.limit
        limits = [each.limit for each in self.worst.values() if math.isfinite(each.limit)]
        return max(limits, default=TOLERANCE.get(self.dtype, TOLERANCE[torch.float32]))

    @property
    def largest(self) -> Difference | None:
        """The difference with the largest error of all kinds."""
        return max(self.worst.values(), key=lambda each: each.error, default=None)

    def error(self, kind: str) -> float | None:
        """The relative error of one kind; None if there was nothing to compare."""
        return self.worst[kind].error if kind in self.worst else None

    def entry(self) -> Row:
        """The ``verification`` of a Record. ``cause`` says where a failure begins and what it looks like."""
        values = self.row()
        if self.passed is None:
            values["note"] = "; ".join(["not verified: nothing could be compared", *self.notes])
        return entry(
            **values,
            checked=self.passed is not None,
            gaps=[*self.gaps],
            training_steps=self.training_steps,
            unreached={"parameters": [*self.unreached_parameters]},
        )

    def row(self) -> Row:
        """Steps as in the Record: ``worst`` is what failed, else the largest error; steps count from 1."""
        return {
            "dtype": _name(self.dtype),
            "steps": self.steps,
            "passed": self.passed,
            **{key: self.error(kind) for key, kind in KINDS.items()},
            "tolerance": self.tolerance,
            "worst": self._worst,
            "note": "; ".join(self.notes),
            "cause": self.cause,
        }

    def error_of(self, layout: str, note: str, cause: str = "") -> VerificationError:
        """The error of a layout that failed; ``cause`` may say when, as the Record does."""
        cause, shown = cause or self.cause, f" ({note})" if note else ""
        text = (
            f"{layout} does not compute what a single device computes (allowed {self.tolerance:g}): {cause}"
        )
        return VerificationError(text + shown, **self._worst or {}, cause=cause)

    @property
    def _worst(self) -> Row | None:
        if self.failed is None:
            return row_of(self.largest)
        return {**(row_of(self.failed) or {}), "module": self.module}


def entry(note: str, **values: Any) -> Row:
    """The ``verification`` of a Record before the run's own steps; else nothing is compared."""
    return {"checked": False, "passed": None, "note": note, **values, "first_steps": None, "last_step": None}


def row_of(worst: Difference | None) -> Row | None:
    """A difference as in the Record."""
    if worst is None:
        return None
    return {key: value for key, value in asdict(worst).items() if key not in ("apart", "is_comparable")}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
