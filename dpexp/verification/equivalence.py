"""Equivalence: whether a layout of a model trains as a single device does.

It knows nothing of a run's config: a model, a function that lays it out, batches, a loss and an optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import nn

from dpexp.config.errors import describe
from dpexp.data.batch import Batch
from dpexp.data.objective import Objective
from dpexp.data.rng import kept_globals
from dpexp.distributed.process_group import ProcessGroup
from dpexp.strategies.placed import Loss
from dpexp.training.optimizer_choice import OptimizerFactory
from dpexp.verification.comparison import Comparison, LayOut
from dpexp.verification.limits.compare import Difference
from dpexp.verification.limits.rounding import NARROWER
from dpexp.verification.modes.mode import Mode, RowsInChunks, RowsTogether
from dpexp.verification.modes.random_draws import more_quiet
from dpexp.verification.paths.reaching import Made
from dpexp.verification.result import TOLERANCE, Result, VerificationError
from dpexp.verification.steps.gathered_outputs import scalars_of_replicas
from dpexp.verification.steps.side_by_side import (
    NOT_COMPARABLE,
    DrawsRandomNumbersError,
    RefusedBatchError,
    Report,
    SingleDeviceError,
    no_report,
)

CORRELATED = 0.75
"""Chunks with the same random numbers leave at most half of the rows of alike rows different."""


@dataclass(frozen=True)
class Equivalence:
    """Trains a copy of the model in the layout and one on the host, a step on each of the global batches.

    ``optimizer`` makes the optimizer of some parameters; without one only forwards are compared. Neither the
    model nor the random state of the host is changed. ``narrowed`` says why ``dtype`` is not a wider one.
    ``made`` are batches to step after these (``reaching``); ``not_verified`` has what refused some of them.
    ``evaluates``: the trained weights are compared in eval mode without gradients, too. ``report`` gets what
    differs before it is located. ``own_dtype`` is the type in which the model is to train: a failure says
    whether it is wrong in that, too, since libraries take other paths by type.
    """

    model: nn.Module
    lay_out: LayOut
    batches: Sequence[Batch]
    loss: Loss | Objective
    optimizer: OptimizerFactory | None = None
    group: ProcessGroup = field(default_factory=ProcessGroup)
    dtype: torch.dtype = torch.float64
    narrowed: str = ""
    made: Sequence[Made] = ()
    evaluates: bool = False
    not_verified: tuple[str, ...] = ()
    report: Report = no_report
    own_dtype: torch.dtype | None = None

    def result(self) -> Result:
        """Compare; every rank must call this, and gets the same result.

        Modules whose results depend on the split of rows, or on random numbers, are compared twice: in eval
        mode, and chunk by chunk in training mode. A model that does not compute in a type is compared in the
        next narrower one. Raises what the model raises in every type, and NonfiniteError where the single
        device's loss is not finite.
        """
        verified, found = self._in_a_type_that_computes()
        own = self.own_dtype
        if found.failed is None or found.mode_in_training or own not in TOLERANCE or found.dtype == own:
            return found
        return replace(found, cause=f"{found.cause}; {verified._in_types(found, found.failed, own)}")

    def _in_types(self, found: Result, failed: Difference, own: torch.dtype) -> str:
        """Whether the steps up to a failed one are wrong in the model's own type, too.

        Raises VerificationError where other ranks may wait for this one, which raises in that type.
        """
        wrong, other = (str(dtype).removeprefix("torch.") for dtype in (found.dtype, own))
        batches = [*self.batches, *(each.batch for each in self.made)]
        comparison = replace(
            self._comparison(found.mode, batches[: failed.step]),
            made=self._made,
            evaluates=failed.step > len(batches),
            dtype=own,
            narrowed="",
            report=no_report,
        )
        try:
            with kept_globals(), scalars_of_replicas():
                same = comparison.result()
        except Exception as error:  # of any kind: the failure is known
            text = f"in {wrong}; in {other}, the run's own type, it raises {describe(error)}"
            if self.group.all_failed(f"verification: {other}", describe(error)):
                return text
            cause = f"{found.cause}; {text}"
            raise VerificationError.of("the layout", found.tolerance, cause) from error
        if same.failed is not None:
            return f"in {wrong} and in {other}, the run's own type"
        is_comparable = not any(note.startswith(NOT_COMPARABLE) for note in same.notes)
        if is_comparable and failed.kind in same.worst and failed.error > same.worst[failed.kind].limit:
            return f"in {wrong} only: in {other}, the run's own type, it is right"
        return f"in {wrong}; in {other}, the run's own type, an error of this size may be rounding"

    def _in_a_type_that_computes(self) -> tuple[Equivalence, Result]:
        """In this type, or in the next narrower one in which the single device computes.

        Also what was compared: without the batches that were refused.
        """
        try:
            with kept_globals(), scalars_of_replicas():
                return self, self._result_in_this_type()
        except SingleDeviceError as error:
            narrower, cause, where = NARROWER.get(self.dtype), error.cause, error.where
        except RefusedBatchError as error:
            return self._without(error)._in_a_type_that_computes()
        if narrower is None:
            raise cause
        why = f"compared in {narrower}, since the {where} does not compute in {self.dtype}: {describe(cause)}"
        try:
            return replace(self, dtype=narrower, narrowed=why)._in_a_type_that_computes()
        except type(cause):
            raise cause from None

    def _without(self, refused: RefusedBatchError) -> Equivalence:
        """Without the batch that was refused."""
        what = self._made[refused.step]
        made = [each for each in self.made if each.what != what]
        text = f"a batch with {what} was not verified: {refused.by} {describe(refused.cause)}"
        return replace(self, made=made, not_verified=(*self.not_verified, text))

    @property
    def _made(self) -> dict[int, str]:
        """What is special about the batches that were made, by the numbers of their steps."""
        return {step: each.what for step, each in enumerate(self.made, len(self.batches) + 1)}

    def _result_in_this_type(self) -> Result:
        mode = RowsTogether()
        while True:
            try:
                batches = [*self.batches, *(each.batch for each in self.made)]
                comparison = self._comparison(mode, batches)
                together = replace(comparison, made=self._made, evaluates=self.evaluates).result()
                break
            except DrawsRandomNumbersError as error:
                mode = replace(mode, quiet=more_quiet(mode.quiet, error.names))
        if together.failed is not None and mode.may_draw:  # both sides draw: nothing was compared
            together = replace(together, worst={}, steps=0, cause="", failed=None)
        together = replace(together, notes=[*together.notes, *self.not_verified])
        if self.optimizer is None or together.failed is not None:
            return together
        if self.group.size > 1 and not mode.may_draw:
            cause = self._comparison(mode, self.batches).dependence(together.mode)
            if cause:
                return replace(together, cause=cause)
        return self._in_training(together)

    def _in_training(self, together: Result) -> Result:
        """The same in training mode, chunk by chunk, where modules were not compared in it."""
        mode = together.mode
        assert isinstance(mode, RowsTogether)
        batches = [batch for batch in self.batches if mode.chunks.smallest(batch.rows) > 1]
        if not mode.leaves_out(self.model):
            return together
        if not batches:
            return together.noted("not compared in training mode: its chunks have one row")
        try:
            return together.with_training(self._best_of(*mode.in_training(), batches))
        except SingleDeviceError as error:
            return together.noted(f"not compared in training mode: {describe(error.cause)}")

    def _best_of(
        self, strict: RowsInChunks, others: Sequence[RowsInChunks], batches: Sequence[Batch]
    ) -> Result:
        """The result in the first mode that passes, or else in the strict one.

        A user's layout may define what random layers and batch norms do; chunks must draw other numbers.
        """
        strictly = self._comparison(strict, batches)
        first = replace(strictly, report=no_report if others else self.report).result()
        for mode in others if first.failed is not None else ():
            result = self._comparison(mode, batches).result()
            if result.passed:
                return first if self._are_correlated(strict, batches) else result
        return first

    def _are_correlated(self, mode: RowsInChunks, batches: Sequence[Batch]) -> bool:
        """Whether rows of the layout get the same random numbers as others, and do not on a single device."""
        found, expected = self._comparison(mode, batches).distinct_rows()
        return 2 * expected > batches[0].rows and found < CORRELATED * expected

    def _comparison(self, mode: Mode, batches: Sequence[Batch]) -> Comparison:
        return Comparison(
            self.model,
            self.lay_out,
            batches,
            self._objective,
            self.optimizer,
            self.group,
            self.dtype,
            self.narrowed,
            mode,
            report=self.report,
        )

    @cached_property
    def _objective(self) -> Objective:
        return self.loss if isinstance(self.loss, Objective) else Objective(loss=self.loss)
