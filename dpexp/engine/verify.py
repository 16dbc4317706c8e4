"""Verification: whether a run's layout trains as a single device does, as an entry of the Record.

    before       copies in float64, with the run's own optimizer: a full batch, the last and uneven one of the
                 epoch, and another full one; then one with edge rows, which is made
    first steps  the run's own trainer, in its own type, beside a single device
    last step    the same from the state of the trained model

Float64 separates rounding (about 1e-16) from wrong semantics (1e-3 and more); float32 does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

import torch
from torch import nn

from dpexp import devices, tensors
from dpexp.copies import copied
from dpexp.data.batch import Batch
from dpexp.engine.prepared import Prepared
from dpexp.engine.progress import ProgressBar
from dpexp.record.journal import Journal
from dpexp.strategies.placed import Placed
from dpexp.timing import Timer
from dpexp.training.optimizers import OptimizerChoice
from dpexp.training.trainer import Trainer
from dpexp.verification.edge_rows import with_edge_rows
from dpexp.verification.mode import Mode
from dpexp.verification.own_steps import FIRST, OwnSteps, Pairs
from dpexp.verification.proof import proof_of
from dpexp.verification.result import Result, entry
from dpexp.verification.sides import Copies
from dpexp.verification.take import SEEDED_ALIKE
from dpexp.verification.touched_rows import UnknownIdError, large_tables, with_touched_rows

UNVERIFIED = "--no-check runs it unverified"
"""What a user may do about a layout that is refused."""


class Verification:
    """The verification of one run. A difference is recorded, and raises VerificationError.

    With ``--no-check`` nothing is compared.
    """

    def __init__(self, prepared: Prepared, journal: Journal, progress: ProgressBar) -> None:
        self._prepared, self._journal, self._progress = prepared, journal, progress
        self._copy: tuple[nn.Module, Mode | None] | None = None
        self._own: OwnSteps | None = None
        self._notes, self._note, self._gaps = list[str](), "", list[str]()
        self._first = min(FIRST, prepared.schedule.warmup)
        self._last = (1 + FIRST - self._first) * prepared.accumulate

    def before(self) -> None:
        """Compare steps of copies, before the model is placed."""
        if not self._prepared.schedule.check:
            self._journal.set(verification=entry("not verified: --no-check"))
            return
        self._progress.begin("verify")
        result = verify(self._prepared)
        found = result.entry()
        self._note, self._gaps = found["note"], found["gaps"]
        self._journal.set(verification=found)
        if result.cause:
            note = "; ".join([*result.notes, UNVERIFIED])
            raise result.error_of(self._prepared.strategy.name, note)
        self._copy = self._copied(), result.mode_in_training

    def first(self, trainer: Trainer, batches: Iterable[Batch]) -> None:
        """Compare the run's first steps, on the first of these global batches."""
        if self._copy is None:
            return
        (model, mode), self._copy, prepared = self._copy, None, self._prepared
        objective, optimizer, dtype = prepared.data.objective, prepared.optimizer, prepared.dtype
        self._own = OwnSteps.of(model, trainer, objective, optimizer, dtype, prepared.autocast, mode)
        result = self._own.first(self._pairs(islice(batches, self._first)))
        devices.reset_peak_memory(trainer.placed.devices)
        is_placed = self._own.trial.failure is None
        where = "in the run's own first steps" if is_placed else "as placed, before the first step"
        self._record("first_steps", where, result)

    def last(self, number: int) -> None:
        """Compare steps from the trained state after so many, on the batches of the epoch that comes next."""
        if self._own is None:
            return
        result = self._own.last(self._pairs(self._after(number)))
        self._record("last_step", "after the last measured step, from its state", result)

    def _copied(self) -> nn.Module:
        """The model before it is placed, with the rows of large tables that the compared batches use."""
        prepared, model = self._prepared, self._prepared.model
        if not prepared.strategy.needs.user_code and large_tables(model):
            first = islice(prepared.endless_batches(), self._first)
            compared = [*first, *self._after(prepared.schedule.steps)]
            model, self._notes = with_touched_rows(model, compared)
        return copied(model, prepared.dtype).train(prepared.optimizer is not None)

    def _after(self, number: int) -> Iterator[Batch]:
        """The batches to compare after so many measured steps."""
        epoch = number // self._prepared.batches_per_epoch + 1
        return islice(self._prepared.endless_batches(epoch), self._last)

    def _pairs(self, batches: Iterable[Batch]) -> Pairs:
        return ((batch, self._prepared.part(batch)) for batch in batches)

    # --- the journal ---

    def _record(self, name: str, where: str, result: Result) -> None:
        row = replace(result, notes=[*result.notes, *self._notes]).row()
        if SEEDED_ALIKE in result.notes and SEEDED_ALIKE not in self._note:
            self._note = "; ".join(filter(None, [SEEDED_ALIKE, self._note]))
        self._gaps = [*dict.fromkeys([*self._gaps, *result.gaps])]
        facts = {name: row, "note": self._note, "gaps": self._gaps}
        self._journal.set({f"verification.{key}": value for key, value in facts.items()})
        if result.cause:
            autocast = self._prepared.autocast
            computed_in = f"{row['dtype']} under autocast to {autocast}" if autocast else row["dtype"]
            cause = f"{where}, in {computed_in}: {result.cause}"
            self._journal.set({"verification.passed": False, "verification.cause": cause})
            raise result.error_of(self._prepared.strategy.name, UNVERIFIED, cause)


def verify(prepared: Prepared) -> Result:
    """Compare the strategy with a single device, by copies; the model is not changed."""
    has_mps = any(device.type == "mps" for device in prepared.selection.used)  # which has no float64
    dtype = torch.float32 if has_mps else torch.float64
    try:
        return _compared(prepared, dtype)
    except UnknownIdError:  # in eval mode, the model looks up other rows
        return _compared(prepared, dtype, in_full=True)


def _compared(prepared: Prepared, dtype: torch.dtype, in_full: bool = False) -> Result:
    """The result of a proof, with notes about what of the model it is given for."""
    compared, model, notes = batches(prepared), prepared.model, list[str]()
    group, used = prepared.group, prepared.selection.used
    made = _edge_rows(prepared, compared[0])
    if not (in_full or prepared.strategy.needs.user_code):
        model, notes = with_touched_rows(model, compared if made is None else [*compared, made])
    objective, optimizer = prepared.data.objective, _optimizer(prepared)

    def lay_out(model: nn.Module) -> Placed:
        return prepared.strategy.lay_out(model, used, Timer())

    result = proof_of(Copies(model, lay_out, compared, objective, optimizer, group, dtype, made))
    return replace(result, notes=[*result.notes, *notes, *filter(None, [prepared.note])])


def _edge_rows(prepared: Prepared, batch: Batch) -> Batch | None:
    """A batch of edge rows, where all ranks have made the same one."""
    shards = max(prepared.group.size, len(prepared.selection.used))
    made = with_edge_rows(prepared.model, batch, shards)
    inputs = tensors.walk(made.inputs if made is not None else ())
    return made if len(set(prepared.group.all_gather(tensors.digest(inputs)))) == 1 else None


def _optimizer(prepared: Prepared) -> OptimizerChoice | None:
    """The run's; it accumulates two batches where the run accumulates more, so that few batches show it."""
    choice = prepared.optimizer
    return replace(choice, accumulate=min(2, choice.accumulate)) if choice is not None else None


def batches(prepared: Prepared) -> list[Batch]:
    """The first batch of an epoch, one like its last, and its second; some twice in a short epoch."""
    first, *others = islice(prepared.batches(0), 3)
    return [first, prepared.as_last([first, *others][-1]), [*others, first][0]]
