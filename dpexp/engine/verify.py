"""Verification: whether a run's layout trains as a single device does, as an entry of the Record.

Three training steps in float64, with the run's own optimizer: a full batch, the last and uneven one of the
epoch, and another full one; then one on each batch that is made to reach rare paths (``paths.reaching``).
Float64 separates rounding (about 1e-16) from wrong semantics (1e-3 and more); float32 does not.
"""

import math
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import NoReturn

import torch
from torch import nn

from dpexp.config.run_config import RunConfig
from dpexp.data.batch import Batch
from dpexp.engine.prepare import Prepared
from dpexp.record.journal import Journal
from dpexp.record.record import Row
from dpexp.strategies.base import Strategy
from dpexp.strategies.placed import Placed
from dpexp.timing import Timer
from dpexp.training.optimizer_choice import OptimizerChoice
from dpexp.training.trainer import Trainer
from dpexp.verification.comparison import in_dtype, on_host
from dpexp.verification.equivalence import Equivalence
from dpexp.verification.limits.compare import Difference
from dpexp.verification.limits.norms import Tensors, distance, magnitude
from dpexp.verification.modes.mode import Mode
from dpexp.verification.paths.reaching import Pieces, reached_by_all
from dpexp.verification.result import TOLERANCE, Result, VerificationError
from dpexp.verification.steps.gathered_outputs import gathered_outputs
from dpexp.verification.steps.model_copy import copied
from dpexp.verification.steps.recorder import Step, computed
from dpexp.verification.steps.side_by_side import Report, no_report
from dpexp.verification.touched_rows import UnknownIdError, with_touched_rows

UNVERIFIED = "--no-check runs it unverified"
"""What a user may do about a layout that is refused."""


@dataclass(frozen=True)
class Verification:
    """The ``verification`` of a Record; errors are None if there was nothing to compare.

    ``worst`` is the largest error: what differs (``kind``), its step (from 1), the tensor and the error.
    ``cause`` says where a failure begins and what it looks like. ``mode_in_training`` is in no Record: the
    mode of the steps in training mode, if there were any.
    """

    checked: bool
    dtype: str = ""
    output_error: float | None = None
    gradient_error: float | None = None
    tolerance: float | None = None
    passed: bool | None = None
    note: str = ""
    rounding: Row | None = None
    steps: int = 0
    training_steps: int = 0
    loss_error: float | None = None
    buffer_error: float | None = None
    parameter_error: float | None = None
    update_error: float | None = None
    optimizer_error: float | None = None
    worst: Row | None = None
    cause: str = ""
    unreached: Row | None = None
    first_steps: Row | None = None
    last_step: Row | None = None
    mode_in_training: Mode | None = None

    def row(self) -> Row:
        """As in the Record."""
        return {key: value for key, value in vars(self).items() if key != "mode_in_training"}


def verify(prepared: Prepared, report: Report = no_report) -> Verification:
    """Compare the strategy with a single device; the model is not changed.

    A run in a short type, under autocast or compiled is also compared as it computes: its error against
    float64 may be twice that of a single device. ``report`` gets what differs before it is located.
    """
    has_mps = any(device.type == "mps" for device in prepared.selection.used)  # which has no float64
    dtype = torch.float32 if has_mps else torch.float64
    try:
        equivalence, notes = _equivalence(prepared, dtype, report)
        result = equivalence.result()
    except UnknownIdError:  # in eval mode, the model looks up other rows
        equivalence, notes = _equivalence(prepared, dtype, report, in_full=True)
        result = equivalence.result()
    if result.is_empty:
        note = "; ".join(["not verified: nothing could be compared", *result.notes, *notes])
        return Verification(checked=False, note=note)
    rounding = _Rounding(prepared, replace(equivalence, dtype=result.dtype), result.mode).row()
    passed = result.passed and (rounding is None or bool(rounding["passed"]))
    return Verification(
        True,
        str(result.dtype).removeprefix("torch."),
        result.error("outputs"),
        result.error("gradients"),
        result.tolerance,
        passed,
        "; ".join(filter(None, [*result.notes, *notes, prepared.note])),
        rounding,
        **_additions(result),
    )


def refuse(prepared: Prepared, journal: Journal, tolerance: float, cause: str) -> NoReturn:
    """Record what is found wrong after the verification has passed, and raise VerificationError."""
    journal.set({"verification.passed": False, "verification.cause": cause})
    journal.flush()
    raise VerificationError.of(prepared.config.strategy, tolerance, cause, UNVERIFIED)


def _additions(result: Result) -> Row:
    """What a Record has had since verification trains."""
    return {
        "steps": result.steps,
        "training_steps": result.training_steps,
        "mode_in_training": result.mode_in_training,
        "loss_error": result.error("loss"),
        "buffer_error": result.error("buffers"),
        "parameter_error": result.error("parameters"),
        "update_error": result.error("updates"),
        "optimizer_error": result.error("optimizer"),
        "worst": row_of(result.failed or result.largest),
        "cause": result.cause,
        "unreached": {"modules": [*result.unreached_modules], "parameters": [*result.unreached_parameters]},
    }


def row_of(worst: Difference | None) -> Row | None:
    """A difference as in the Record."""
    if worst is None:
        return None
    return {key: value for key, value in asdict(worst).items() if key not in ("apart", "is_comparable")}


def _equivalence(
    prepared: Prepared, dtype: torch.dtype, report: Report, in_full: bool = False
) -> tuple[Equivalence, list[str]]:
    """The equivalence to show, and notes about what of the model it is shown for."""
    compared, model, notes = batches(prepared), prepared.model, list[str]()
    objective, trains = prepared.data.objective, not prepared.config.eval
    group = prepared.strategy.group
    pieces = Pieces.of_layout(group, prepared.selection.used)
    made = reached_by_all(model, objective, compared[0], pieces, trains, group)
    if not (in_full or prepared.strategy.needs.full_tables):
        model, notes = with_touched_rows(model, [*compared, *(each.batch for each in made)])
    plain = prepared.strategy.configured(replace(prepared.config, autocast="", compile=False))
    equivalence = Equivalence(
        model,
        lambda model: plain.place(model, prepared.selection.used, Timer()),
        compared,
        objective,
        _optimizer(prepared),
        group,
        dtype,
        made=made,
        evaluates=True,
        report=report,
        own_dtype=getattr(torch, prepared.config.dtype),
    )
    return equivalence, notes


def _optimizer(prepared: Prepared) -> OptimizerChoice | None:
    """The run's; it accumulates two batches where the run accumulates more, so that few batches show it."""
    choice = prepared.optimizer
    return replace(choice, accumulate=min(2, choice.accumulate)) if choice is not None else None


def batches(prepared: Prepared) -> list[Batch]:
    """The first batch of the epoch, its last one, and its second; where there are fewer, some twice."""
    last = prepared.batches_per_epoch - 1
    first, *others = islice(prepared.batches(0), min(2, last + 1))
    ends = list(prepared.batches(0, first=last)) if last > 1 else others
    return [first, *(ends or [first]), *(others or [first])]


@dataclass(frozen=True)
class _Rounding:
    """The first batch in a short type, under autocast or compiled, against the float64 of a single device."""

    prepared: Prepared
    equivalence: Equivalence
    mode: Mode

    def row(self) -> Row | None:
        """Errors of the run, and of a single device that computes the same way; None for other runs."""
        strategy, config = self.prepared.strategy, self.prepared.config
        dtype: torch.dtype = getattr(torch, config.dtype)
        if dtype in TOLERANCE and not config.autocast and not config.compile:
            return None
        exact = self._on_single_device(replace(config, autocast="", compile=False), self.equivalence.dtype)
        layout = self._on_layout(strategy, dtype, exact)
        single = self._on_single_device(replace(config, compile=False), dtype)
        errors = {name: _errors(step, exact) for name, step in (("", layout), ("single_", single))}
        least = torch.finfo(torch.float32).eps
        passed = all(
            error is None or (reference is not None and error <= 2 * reference + least)
            for error, reference in zip(errors[""], errors["single_"], strict=True)
        )
        row: Row = {"dtype": config.dtype, "autocast": config.autocast, "compile": config.compile}
        for prefix, (output, gradient) in errors.items():
            row |= {f"{prefix}output_error": output, f"{prefix}gradient_error": gradient}
        return row | {"passed": passed}

    def _on_single_device(self, config: RunConfig, dtype: torch.dtype) -> Step:
        return self._step(on_host(self._copy(dtype)), self.equivalence.batches[0], dtype, config)

    def _on_layout(self, strategy: Strategy, dtype: torch.dtype, exact: Step) -> Step:
        placed = strategy.place(self._copy(dtype), self.prepared.selection.used, Timer())
        objective, group = self.prepared.data.objective, strategy.group
        part = objective.weighted(self.equivalence.batches[0].part(group.rows), group)
        step = self._step(placed, part, dtype, strategy.config)
        step.outputs = gathered_outputs(step, exact, part, objective, group)
        return step

    def _copy(self, dtype: torch.dtype) -> nn.Module:
        model = copied(self.equivalence.model, dtype)
        self.mode.prepare(model)
        return model

    def _step(self, placed: Placed, batch: Batch, dtype: torch.dtype, config: RunConfig) -> Step:
        optimizer = self.equivalence.optimizer
        trainer = Trainer(placed, self.prepared.data.loss, optimizer, config.autocast, self.prepared.group)
        return computed(trainer, in_dtype(batch, dtype))


def _errors(found: Step, expected: Step) -> tuple[float | None, float | None]:
    return _error(found.outputs, expected.outputs), _error(found.gradients, expected.gradients)


def _error(found: Tensors, expected: Tensors) -> float | None:
    """``||found - expected|| / ||expected||`` of all tensors together; None without tensors."""
    if not expected:
        return None
    apart = math.hypot(*(distance(found.get(name), tensor) for name, tensor in expected.items()))
    size = math.hypot(*map(magnitude, expected.values()))
    return apart / size if size else apart
