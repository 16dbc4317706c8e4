"""Proof: whether a layout of a model trains as a single device does, shown on copies in float64.

A proof is a list of tries, each of which takes steps (``take``) from the layout's own state:

    rows together   a batch of the run, then in eval mode; two more batches, then in eval mode again
    edge rows       a made batch, rows together, without the optimizer
    in chunks       the three again, where batch norms or random layers were in eval mode

A try makes another trial of one, and the proof chooses among the trials. It knows nothing of a run's config:
a model, a function that lays it out, batches, a loss and an optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from dpexp.config.errors import describe
from dpexp.config.words import listed, plural
from dpexp.data.batch import Batch
from dpexp.data.objective import no_mean_over_rows
from dpexp.data.rng import kept_globals, seed_globals
from dpexp.tensors import norm
from dpexp.training.optimizer_state import HiddenStateError
from dpexp.training.preserve import preserved
from dpexp.verification.alone import OwnGroupError, alone
from dpexp.verification.checks import checked_placed, checked_window, drawn_alike, undecided
from dpexp.verification.compare import Difference, magnitude
from dpexp.verification.diagnosis.locate import Locator
from dpexp.verification.gathered_outputs import scalars_of_replicas
from dpexp.verification.mode import OTHER_NUMBERS, WHOLE_MODEL, Mode
from dpexp.verification.recorder import fewer_collections
from dpexp.verification.result import KINDS, Result
from dpexp.verification.rounding import MARGIN
from dpexp.verification.sides import Copies, ProofSides
from dpexp.verification.single_device import in_dtype
from dpexp.verification.take import take_evaluation, take_step
from dpexp.verification.trial import (
    NOT_COMPARABLE,
    Failure,
    SingleDeviceError,
    Trial,
    uncompared,
    worst_errors,
)

NO_GRADIENT = "no parameter had a gradient other than zero, so that a wrong layout would look the same"
HIDDEN_IN_EVAL_MODE = f"{NOT_COMPARABLE}: outputs in eval mode, where rounding would hide an error"


def proof_of(copies: Copies) -> Result:
    """What a proof of these copies finds; every rank must call this, and gets the same result.

    Neither the model nor the random state of the host is changed. Raises what the model raises in every type,
    and NonfiniteError where the single device's loss is not finite.
    """
    with kept_globals(), scalars_of_replicas(), fewer_collections(copies.model):
        dtype = copies.dtype
        try:
            both = copies.both_sides()
            dtype = both.dtype
            return Tries(copies, both, [in_dtype(each, dtype) for each in copies.batches]).result()
        except OwnGroupError as error:
            return Result(dtype, notes=[str(error)])
        except SingleDeviceError as error:
            if isinstance(error.cause, OwnGroupError | HiddenStateError):
                return Result(dtype, notes=[str(error.cause)])
            raise error.cause from None


@dataclass(frozen=True)
class Try:
    """A step on each of these global batches in a mode; or it ``evaluates`` them, on every rank all rows.

    Without ``updates`` the last one ends before the optimizer.
    """

    mode: Mode
    batches: Sequence[Batch]
    evaluates: bool = False
    updates: bool = True


@dataclass(frozen=True)
class Tries:
    """The tries of a proof on its ``batches`` in the type of both sides, and which of their trials count."""

    copies: Copies
    both: ProofSides
    batches: Sequence[Batch]

    def result(self) -> Result:
        """The trial of rows together, and that in training mode if there is one, as one result."""
        modes, trains, training = self.both.modes, self.copies.optimizer is not None, None
        together = checked_placed(self.both.sides, Trial())
        if modes.together is None:
            only = ": compared in training mode only" if trains else ""
            together = together.noted(f"no mode of the model computes its rows apart from each other{only}")
        elif together.failure is None:
            together = self._together(together, modes.together)
        if together.failure is None and modes.training and trains:
            training = self._in_training(together.restarted())
        return self._result(together, training)

    def _run(self, trial: Trial, each: Try) -> Trial:
        """The trial after these steps too, up to the first that differs. Raises SingleDeviceError."""
        sides, group, quiet = replace(self.both.sides, mode=each.mode), self.copies.group, each.mode.quiet
        rows_are_apart = self.both.nature.batch_norms | self.both.nature.drawing <= quiet
        self.both.switch.set(quiet)  # an evaluation leaves every module in training mode
        for number, batch in enumerate(each.batches, 1):
            if each.evaluates:
                trial = take_evaluation(sides, trial, batch)
            else:
                updates = each.updates or number < len(each.batches)
                seed_globals(((trial.steps + 1) << 16) + group.dp_rank)
                trial = take_step(sides, trial, batch, sides.part(batch), updates=updates)
                reached = {name for name, each in trial.gradients.items() if magnitude(each) > 0}
                trial = replace(trial, reached=trial.reached | reached)
                if trial.failure is None and updates and rows_are_apart:
                    trial = checked_window(sides, trial)
            if trial.failure is not None:
                break
        return trial

    # --- rows together ---

    def _together(self, trial: Trial, mode: Mode) -> Trial:
        """The tries in the mode for most steps, to the end of a window of accumulation, up to a failure."""
        first, *others = self.batches
        optimizers = self.both.sides.layout.optimizers
        accumulate = optimizers.accumulate if optimizers is not None else 1
        smallest = min(self.batches, key=lambda batch: batch.rows)
        evaluation = Try(mode, [first, smallest] if optimizers is not None else [], evaluates=True)
        closing = Try(mode, [first] * (-len(self.batches) % accumulate))
        # what a layout keeps from an evaluation is stale after other steps
        for each in (Try(mode, [first]), evaluation, Try(mode, others), evaluation, closing):
            after = self._run(trial, each)
            if after.failure is not None:
                return after
            if each.evaluates:
                hidden = [HIDDEN_IN_EVAL_MODE] if len(after.hidden) > len(trial.hidden) else []
                after = replace(after.noted(*hidden), rows=trial.rows, hidden=trial.hidden)
            trial = after
        if mode.chunks is not None:
            trial = replace(trial, mode_in_training=mode)
        return self._on_edge_rows(trial, mode, accumulate)

    def _on_edge_rows(self, trial: Trial, mode: Mode, accumulate: int) -> Trial:
        """What differs on the made batch before the optimizer, whose step might move weights too far."""
        made, optimizers = self.copies.made, self.both.sides.layout.optimizers
        if made is None:
            return trial
        batch = in_dtype(made, self.both.dtype)
        if not self._computes(batch, mode, trial.reached):
            return trial
        try:
            after = self._run(trial, Try(mode, [batch] * accumulate, updates=False))
        except Exception as error:
            error.add_note("on a made batch of edge rows, which a single device computes")
            raise
        if after.failure is not None:
            with alone():  # targets may say how much a loss counts by, and fit other rows
                is_mean = not no_mean_over_rows(self.copies.model, self.copies.objective, made)
            if is_mean:
                where = "on a made batch of edge rows, "
                return replace(after, failure=replace(after.failure, where=where))
        if optimizers is not None:
            optimizers.restart()
        kept = replace(trial, reached=after.reached, notes=after.notes, by_shards=after.by_shards)
        return replace(kept, state=None)

    def _computes(self, batch: Batch, mode: Mode, reached: frozenset[str]) -> bool:
        """Whether a single device computes finite numbers, and no rank lacks a gradient that others have."""
        sides, group = self.both.sides, self.copies.group
        state, is_fine = sides.state(), False
        parts = {id(each): each for each in (batch, batch.part(group.rows))}.values()
        with suppress(Exception), preserved(sides.single.trainer.placed.module):  # it may count its forwards
            steps = [sides.single.step(state, part, mode) for part in parts]
            losses = [torch.tensor(step.loss or 0.0) for step in steps]
            numbers = [*losses, *(norm(each) for step in steps for each in step.gradients.values())]
            is_fine = all(reached <= step.gradients.keys() for step in steps)
            is_fine = is_fine and all(map(torch.isfinite, numbers))
        return all(group.all_gather(is_fine))

    # --- rows in chunks ---

    def _in_training(self, trial: Trial) -> Trial:
        """Chunk by chunk in training mode: the first mode that passes, else the trial that got furthest."""
        sides, nature = self.both.sides, self.both.nature
        batches = [each for each in self.batches if sides.chunks.smallest(each.rows) > 1]
        if not batches:
            return _not_in_training(trial, "its chunks have one row")
        failed = list[Trial]()
        for mode in self.both.modes.training:
            if sides.layout.optimizers is not None:
                sides.layout.optimizers.restart()  # forget what a step that differs has left
            try:
                tried = self._run(trial, Try(mode, batches))
            except SingleDeviceError as error:
                return _not_in_training(trial, describe(error.cause))
            if tried.failure is None:
                if mode.note == OTHER_NUMBERS and self._drawn_alike(batches[0]):
                    break
                tried = replace(tried, mode_in_training=mode)
                if mode.note:
                    tried = replace(tried, gaps=("random layers",)).noted(f"in training mode, {mode.note}")
                return tried
            failed.append(tried)
            trial = replace(tried.restarted(), errors=trial.errors)
        hint = self._drawn_alike(batches[0]) if nature.drawing else ""
        if WHOLE_MODEL in nature.drawing and not sides.chunks.draws_alike and not hint:
            return _not_in_training(trial, "it may draw other random numbers than a single device")
        furthest = max(failed, key=_reached)
        assert furthest.failure is not None
        return replace(furthest, failure=replace(furthest.failure, hint=hint))

    def _drawn_alike(self, batch: Batch) -> str:
        """The hint at generators that are seeded alike, in the first mode for training, if there is one."""
        modes = self.both.modes
        mode = modes.training[0] if modes.training else modes.together or Mode()
        self.both.switch.set(mode.quiet)
        return drawn_alike(replace(self.both.sides, mode=mode), batch)

    # --- the result ---

    def _result(self, together: Trial, training: Trial | None) -> Result:
        sides, trial, trains = self.both.sides, training or together, self.copies.optimizer is not None
        steps, in_training = together.compared, training.compared if training is not None else 0
        cause = module = ""
        if trial.failure is not None:
            why_not = undecided(sides, trial.failure)
            located = Locator(sides, trial.failure, self.copies.model).find()
            cause, module, seeds = f"in training mode, {located.text}", located.module or "", ""
            if not in_training:
                seeds = self._of_seeds(trial.failure)
                cause = trial.failure.where + located.text + seeds
            if why_not and not (seeds or trial.failure.hint):
                return Result(self.both.dtype, notes=[why_not])
        worst, notes = worst_errors(*sides.group.all_gather(dict(trial.errors))), [*trial.notes]
        if trains and not cause and steps + in_training and not trial.reached:
            notes.append(NO_GRADIENT)
            steps = in_training = 0
        notes += _of_modes(self.both, in_training) + _of_limits(self.both, worst)
        for each in filter(None, (together, training)):
            notes += uncompared(each, sides.layout, sides.single.dtype)
        named = self.copies.model.named_parameters()
        unreached = [n for n, each in named if each.requires_grad and n not in trial.reached]
        return Result(
            self.both.dtype,
            steps,
            worst,
            [*dict.fromkeys(notes)],
            trial.failure.worst if trial.failure is not None else None,
            cause,
            module,
            in_training,
            trial.mode_in_training,
            unreached if trains else (),
            trial.gaps,
        )

    def _of_seeds(self, failure: Failure) -> str:
        """A hint at generators of the model itself, which are seeded alike."""
        hint = ""
        if failure.worst.kind == "outputs" and math.isfinite(failure.worst.error):
            with suppress(Exception):  # of any kind: what has failed is known
                hint = self._drawn_alike(self.batches[0])
        return hint and f"; {hint}"


def _of_modes(both: ProofSides, in_training: int) -> list[str]:
    """Notes about what was in eval mode, and what was compared in training mode."""
    together, notes = both.modes.together, list[str]()
    if together is not None and together.quiet:
        why = "each shard has its own statistics or masks"
        notes.append(f"in eval mode in some steps: {listed(sorted(together.quiet))}: {why}")
    if in_training:
        notes.append(f"in training mode, chunk by chunk: {plural(in_training, 'step')} more")
    return notes


def _of_limits(both: ProofSides, worst: Mapping[str, Difference]) -> list[str]:
    """Notes about the type in which was compared, and about limits that were measured."""
    limit, tolerance = max((each.limit for each in worst.values()), default=0.0), both.sides.limits.tolerance
    if limit <= tolerance:
        return [both.narrowed] if both.narrowed else []
    why = both.narrowed or f"rounding exceeds {tolerance:g}"
    measured = f"a single device that rounds it otherwise differs from itself by {limit / MARGIN:.1e}"
    return [f"{why}; {measured}, and the limit is {limit:.1e}: smaller errors are not seen"]


def _not_in_training(trial: Trial, why: str) -> Trial:
    return replace(trial.restarted(), gaps=("training mode",)).noted(f"not compared in training mode: {why}")


def _reached(trial: Trial) -> tuple[int, int]:
    """How far a trial has come: to which step, and to which kind of tensors in it."""
    assert trial.failure is not None
    return trial.steps, [*KINDS.values()].index(trial.failure.worst.kind)
