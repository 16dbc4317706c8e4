"""Verification: whether a run's layout trains as a single device does, as an entry of the Record.

Three training steps in float64, with the run's own optimizer: a full batch, the last and uneven one of the
epoch, and another full one; then one on each batch that is made to reach rare paths (``made_batches``).
Float64 separates rounding (about 1e-16) from wrong semantics (1e-3 and more); float32 does not.
"""

from dataclasses import replace
from itertools import islice
from typing import Any, NoReturn

import torch

from dpexp.data.batch import Batch
from dpexp.data.rng import kept_globals
from dpexp.engine.prepare import Prepared
from dpexp.record.journal import Journal
from dpexp.record.record import Row
from dpexp.timing import Timer
from dpexp.training.optimizers import OptimizerChoice
from dpexp.verification.compare import Difference
from dpexp.verification.failure import Report, no_report
from dpexp.verification.made_batches import Pieces, made_batches
from dpexp.verification.proof import Proof
from dpexp.verification.result import Result, VerificationError, row_of
from dpexp.verification.touched_rows import UnknownIdError, with_touched_rows

UNVERIFIED = "--no-check runs it unverified"
"""What a user may do about a layout that is refused."""


def verify(prepared: Prepared, report: Report = no_report) -> Result:
    """Compare the strategy with a single device; the model is not changed.

    ``report`` gets what differs before it is located.
    """
    has_mps = any(device.type == "mps" for device in prepared.selection.used)  # which has no float64
    dtype = torch.float32 if has_mps else torch.float64
    try:
        return _proven(prepared, dtype, report)
    except UnknownIdError:  # in eval mode, the model looks up other rows
        return _proven(prepared, dtype, report, in_full=True)


def row(result: Result) -> Row:
    """The ``verification`` of a Record. ``cause`` says where a failure begins and what it looks like."""
    found: dict[str, Any] = {"checked": result.passed is not None, **result.row()}
    if result.passed is None:
        found["note"] = "; ".join(["not verified: nothing could be compared", *result.notes])
    unreached = {"modules": [*result.unreached_modules], "parameters": [*result.unreached_parameters]}
    return {
        **found,
        "training_steps": result.training_steps,
        "unreached": unreached,
        "first_steps": None,
        "last_step": None,
    }


def unchecked(note: str) -> Row:
    """That of a run that is not verified."""
    return {"checked": False, "passed": None, "note": note, "first_steps": None, "last_step": None}


def reported(difference: Difference, text: str) -> Row:
    """That of a run whose difference is being located."""
    worst, limit = row_of(difference), difference.limit
    return {"checked": True, "passed": False, "tolerance": limit, "worst": worst, "cause": text}


def refuse(prepared: Prepared, journal: Journal, tolerance: float, cause: str) -> NoReturn:
    """Record what is found wrong after the verification has passed, and raise VerificationError."""
    journal.set({"verification.passed": False, "verification.cause": cause})
    journal.flush()
    raise VerificationError.of(prepared.config.strategy, tolerance, cause, UNVERIFIED)


def _proven(prepared: Prepared, dtype: torch.dtype, report: Report, in_full: bool = False) -> Result:
    """The result of a proof, with notes about what of the model it is given for."""
    compared, model, notes = batches(prepared), prepared.model, list[str]()
    group = prepared.strategy.group
    pieces = Pieces.of_layout(group, prepared.selection.used)
    made = made_batches(model, compared[0], pieces)
    if not (in_full or prepared.strategy.needs.full_tables):
        model, notes = with_touched_rows(model, [*compared, *(each.batch for each in made)])
    plain = replace(prepared.strategy, compile=False)
    proof = Proof(
        model,
        lambda model: plain.place(model, prepared.selection.used, Timer()),
        compared,
        prepared.data.objective,
        _optimizer(prepared),
        group,
        dtype,
        made,
        pieces,
        report,
    )
    result = proof.result()
    return replace(result, notes=[*result.notes, *notes, *filter(None, [prepared.note])])


def _optimizer(prepared: Prepared) -> OptimizerChoice | None:
    """The run's; it accumulates two batches where the run accumulates more, so that few batches show it."""
    choice = prepared.optimizer
    return replace(choice, accumulate=min(2, choice.accumulate)) if choice is not None else None


def batches(prepared: Prepared) -> list[Batch]:
    """The first batch of the epoch, its last one, and its second; where there are fewer, some twice.

    All ranks get those of the first: random data is not the same on all.
    """
    last = prepared.batches_per_epoch - 1
    with kept_globals():
        first, *others = islice(prepared.batches(0), min(2, last + 1))
        ends = list(prepared.batches(0, first=last)) if last > 1 else others
    return list(prepared.group.broadcast(0, [first, *(ends or [first]), *(others or [first])]))
