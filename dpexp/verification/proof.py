"""Proof: whether a layout of a model trains as a single device does, shown on copies in float64.

A proof is a list of takes (``take``), each from the layout's own state:

    rows together   three batches of the run, and two in eval mode
    edge rows       a made batch, rows together, without the optimizer
    in chunks       the three again, where batch norms or random layers were in eval mode

It knows nothing of a run's config: a model, a function that lays it out, batches, a loss and an optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import nn

from dpexp.config.errors import describe
from dpexp.config.words import listed, plural
from dpexp.data.batch import Batch
from dpexp.data.halves import no_mean_over_rows
from dpexp.data.objective import Objective
from dpexp.data.rng import kept_globals, seed_globals
from dpexp.distributed.group import ProcessGroup
from dpexp.parallel.random_layers import mark_drawing
from dpexp.strategies.placed import Placed
from dpexp.tensors import norm
from dpexp.training.attributes import HiddenStateError
from dpexp.training.optimizers import OptimizerFactory
from dpexp.training.preserve import preserved
from dpexp.training.trainer import Trainer
from dpexp.verification.alone import OwnGroupError, alone
from dpexp.verification.chunks import Chunks
from dpexp.verification.compare import Difference, Limits, magnitude
from dpexp.verification.diagnosis.locate import Locator
from dpexp.verification.failure import Failure, SingleDeviceError
from dpexp.verification.gathered_outputs import gathered_outputs, scalars_of_replicas
from dpexp.verification.judge import Judge
from dpexp.verification.mode import OTHER_NUMBERS, WHOLE_MODEL, Mode, Modes, Nature, Switch
from dpexp.verification.model_copy import copied
from dpexp.verification.recorder import Step, computed, fewer_collections
from dpexp.verification.result import KINDS, TOLERANCE, Result
from dpexp.verification.rounding import MARGIN, NARROWER, NEGLIGIBLE, mixed_precision
from dpexp.verification.single_device import SingleDevice, in_dtype
from dpexp.verification.state import State
from dpexp.verification.take import NOT_COMPARABLE, Take

LayOut: TypeAlias = Callable[[nn.Module], Placed]

CORRELATED = 0.75
"""Chunks with the same random numbers leave at most half of the rows of alike rows different."""


@dataclass
class Proof:
    """``optimizer`` makes the optimizer of some parameters; without one only forwards are compared.

    ``made`` is a batch of edge rows (``edge_rows``); what it shows is not among the steps of the result.

    Neither the model nor the random state of the host is changed.
    """

    model: nn.Module
    lay_out: LayOut
    batches: Sequence[Batch]
    objective: Objective
    optimizer: OptimizerFactory | None = None
    group: ProcessGroup = field(default_factory=ProcessGroup)
    dtype: torch.dtype = torch.float64
    made: Batch | None = None

    def result(self) -> Result:
        """Compare; every rank must call this, and gets the same result.

        Raises what the model raises in every type, and NonfiniteError where the single device's loss is not
        finite.
        """
        with kept_globals(), scalars_of_replicas(), fewer_collections(self.model):
            self._trained, self._notes, self._narrowed = set[str](), dict[str, None](), ""
            self._gaps = list[str]()
            try:
                self._make_single_device()
                self._lay_out()
                return self._taken()
            except OwnGroupError as error:
                return Result(self.dtype, notes=[str(error)])
            except SingleDeviceError as error:
                if isinstance(error.cause, OwnGroupError | HiddenStateError):
                    return Result(self.dtype, notes=[str(error.cause)])
                raise error.cause from None

    # --- both sides ---

    def _make_single_device(self) -> None:
        """In the first type in which it computes; another one has found out what the model does by nature."""
        first_error = None
        while True:
            self._probe = self._single_device(self.objective)
            self._initial = State.of(self._probe.trainer, self._probe.objective)
            try:
                self._nature = Nature.of(self._probe.trainer.placed.module, self._tried)
                break
            except (RuntimeError, NotImplementedError) as error:
                narrower, first_error = NARROWER.get(self.dtype), first_error or error
                if type(error) not in (RuntimeError, NotImplementedError) or narrower is None:
                    raise first_error from None
                self._narrowed = (
                    f"compared in {narrower}, since a single device does not compute it in {self.dtype}: "
                )
                self._narrowed += describe(error)
                self.dtype = narrower
        self._single = self._single_device(self._probe.objective)  # which knows what the forward returns
        mark_drawing(self._single.trainer.placed.module, self._nature.drawing - {WHOLE_MODEL})

    def _single_device(self, objective: Objective) -> SingleDevice:
        return SingleDevice(copied(self.model, self.dtype), objective, self.optimizer)

    def _tried(self, quiet: frozenset[str]) -> tuple[Step, bool]:
        self._probe.set_mode(Mode(quiet))
        return self._probe.step(self._initial, self.batches[0])[0], self._probe.drew

    def _lay_out(self) -> None:
        """Make the layout, of a copy with the modes of the model as written, and take its steps."""
        model = copied(self.model, self.dtype)
        mark_drawing(model, self._nature.drawing - {WHOLE_MODEL})
        objective = self._probe.objective.copied(model)
        placed, is_short = self.lay_out(model), False
        kinds = {each.dtype for each in placed.module.parameters() if each.is_floating_point()}
        if len(kinds) == 1 and self.dtype not in kinds:
            is_short, self.dtype = True, next(iter(kinds))
            self._narrowed = f"compared in {self.dtype}: the layout has cast the model to it"
            self._make_single_device()
        layout = Trainer(placed, objective.loss, self.optimizer, group=self.group)
        negligible = max(NEGLIGIBLE[each] for each in (self.dtype, *mixed_precision(placed.module)))
        tolerance = torch.finfo(self.dtype).eps if self._narrowed else TOLERANCE[self.dtype]
        limits = Limits.of(self.dtype, tolerance, negligible)
        self._switch = Switch(placed.module, self._nature.batch_norms | self._nature.drawing)
        self._single.chunks = Chunks.of(placed, self.group)
        self._modes = Modes.of(self._nature, self.model, placed, self._single.chunks, self.group)
        judge = Judge(limits, self.group)
        self._take = Take(layout, self._single, judge, objective, is_short, True, True)

    def _set_mode(self, mode: Mode) -> None:
        self._single.set_mode(mode)
        self._switch.set(mode.quiet)

    # --- takes ---

    def _taken(self) -> Result:
        together, training, compared = self._modes.together, 0, None
        self._initial.load(self._single.trainer)
        failure = self._take.check_placed()
        if together is None:
            only = ": compared in training mode only" if self.optimizer is not None else ""
            self._note(f"no mode of the model computes its rows apart from each other{only}")
        elif failure is None:
            self._set_mode(together)
            failure, compared = self._in_mode(), together if together.in_chunks else None
        notes, steps = self._take.uncompared(), self._take.compared
        if failure is None and self._modes.training and self.optimizer is not None:
            failure, compared = self._in_training()
            notes, training = [*notes, *self._take.uncompared()], self._take.compared
        return self._result(failure, steps, training, compared, notes)

    def _in_mode(self) -> Failure | None:
        """The steps in the mode for most of them, to the end of a window of accumulation."""
        failure = self._steps(self._batches[:1])
        failure = failure or self._evaluated()  # what a layout keeps from it is stale after other steps
        failure = failure or self._steps(self._batches[1:]) or self._evaluated()
        optimizers = self._take.layout.optimizers
        while failure is None and optimizers is not None and optimizers.batches:
            failure = self._steps([self._batches[0]])
        return failure or self._on_edge_rows()

    def _steps(self, batches: Sequence[Batch], updates: bool = True) -> Failure | None:
        """A step on each batch, until one differs."""
        for batch in batches:
            part = self.objective.weighted(batch.part(self.group.rows), self.group)
            seed_globals(((self._take.steps + 1) << 16) + self.group.dp_rank)
            failure = self._take.step(batch, part, updates)
            gradients = self._take.latest.gradients.items()
            self._trained |= {n for n, each in gradients if n not in self._trained and magnitude(each) > 0}
            rows_are_apart = self._nature.batch_norms | self._nature.drawing <= self._single.mode.quiet
            if failure is None and updates and rows_are_apart:
                failure = self._take.check_window()
            if failure:
                return failure
        return None

    def _on_edge_rows(self) -> Failure | None:
        """What differs on the made batch before the optimizer, whose step might move weights too far."""
        if self.made is None:
            return None
        take, batch, optimizers = self._take, in_dtype(self.made, self.dtype), self._take.layout.optimizers
        steps, errors, hidden = take.steps, dict(take.judge.errors), dict(take.judge.hidden)
        if not self._computes(batch):
            return None
        accumulate = 1 if optimizers is None else optimizers.accumulate
        try:
            failure = self._steps([batch] * (accumulate - 1)) or self._steps([batch], updates=False)
        except Exception as error:
            error.add_note("on a made batch of edge rows, which a single device computes")
            raise
        if failure is not None:
            with alone():  # targets may say how much a loss counts by, and fit other rows
                is_mean = not no_mean_over_rows(self.model, self._single.objective, self.made)
            if is_mean:
                return replace(failure, where="on a made batch of edge rows, ")
        take.steps, take.judge.errors, take.judge.hidden = steps, errors, hidden
        if optimizers is not None:
            optimizers.restart()
        return None

    def _computes(self, batch: Batch) -> bool:
        """Whether a single device computes finite numbers, and no rank lacks a gradient that others have."""
        state, is_fine = State.of(self._take.layout, self._take.objective), False
        parts = {id(each): each for each in (batch, batch.part(self.group.rows))}.values()
        with suppress(Exception), preserved(self._single.trainer.placed.module):  # it may count its forwards
            steps = [self._single.step(state, part)[0] for part in parts]
            losses = [torch.tensor(step.loss or 0.0) for step in steps]
            numbers = [*losses, *(norm(each) for step in steps for each in step.gradients.values())]
            reach = all(self._trained <= step.gradients.keys() for step in steps)
            is_fine = reach and all(map(torch.isfinite, numbers))
        return all(self.group.all_gather(is_fine))

    def _evaluated(self) -> Failure | None:
        """Trained weights in eval mode, on the first batch and the smallest; ranks get all rows."""
        if self.optimizer is None:
            return None
        chunks, mode = self._single.chunks, self._single.mode
        take, hidden = self._take, dict(self._take.judge.hidden)
        steps = take.steps
        self._single.chunks = replace(chunks, dp_size=1)
        self._single.set_mode(mode)
        for batch in (self._batches[0], min(self._batches, key=lambda batch: batch.rows)):
            failure = take.evaluate(batch)
            if failure:
                return failure
        if len(take.judge.hidden) > len(hidden):
            self._note(f"{NOT_COMPARABLE}: outputs in eval mode, where rounding would hide an error")
        take.steps, take.judge.hidden, self._single.chunks = steps, hidden, chunks
        self._set_mode(mode)  # an evaluation leaves every module in training mode
        return None

    def _in_training(self) -> tuple[Failure | None, Mode | None]:
        """Chunk by chunk in training mode: the first mode that passes, or else the latest failure of all."""
        batches = [each for each in self._batches if self._single.chunks.smallest(each.rows) > 1]
        errors, furthest = dict(self._take.judge.errors), None
        if not batches:
            return self._not_in_training("its chunks have one row", errors)
        for mode in self._modes.training:
            self._take.restart()
            self._take.judge.errors = dict(errors)
            self._set_mode(mode)
            if self._take.layout.optimizers is not None:
                self._take.layout.optimizers.restart()  # forget what a step that differs has left
            try:
                failure = self._steps(batches)
            except SingleDeviceError as error:
                return self._not_in_training(describe(error.cause), errors)
            if failure is None:
                if mode.note == OTHER_NUMBERS and self._are_correlated(batches[0]):
                    break
                if mode.note:
                    self._note(f"in training mode, {mode.note}")
                    self._gaps.append("random layers")
                return None, mode
            reached = self._take.steps, [*KINDS.values()].index(failure.worst.kind)
            if furthest is None or reached > furthest[0]:
                furthest = reached, failure, dict(self._take.judge.errors)
        is_correlated = bool(self._nature.drawing) and self._are_correlated(batches[0])
        draws_otherwise = WHOLE_MODEL in self._nature.drawing and not self._single.chunks.draws_alike
        if draws_otherwise and not is_correlated:
            return self._not_in_training("it may draw other random numbers than a single device", errors)
        (self._take.steps, _), failure, self._take.judge.errors = furthest  # type: ignore[misc]
        if is_correlated:
            failure.hint = self._alike
        return failure, None

    @property
    def _alike(self) -> str:
        who = "ranks" if self.group.size > 1 else "replicas"
        return f"the {who} draw the same random numbers: seed the generator of each differently"

    def _of_seeds(self, failure: Failure) -> str:
        """A hint at generators of the model itself, which are seeded alike."""
        if failure.worst.kind == "outputs" and math.isfinite(failure.worst.error):
            with suppress(Exception):  # of any kind: what has failed is known
                return f"; {self._alike}" if self._are_correlated(self._batches[0]) else ""
        return ""

    def _not_in_training(self, why: str, errors: dict[str, Difference]) -> tuple[None, None]:
        self._take.restart()
        self._take.judge.errors = errors
        self._note(f"not compared in training mode: {why}")
        self._gaps.append("training mode")
        return None, None

    def _are_correlated(self, batch: Batch) -> bool:
        """Whether rows of the layout get the same random numbers as others, and do not on a single device.

        Not known of ranks that share rows, which are seeded alike here.
        """
        if self.group.size > self.group.dp_size:
            return False
        if self._modes.training:
            self._set_mode(self._modes.training[0])
        alike = batch.chosen([0] * batch.rows)
        part = self.objective.weighted(alike.part(self.group.rows), self.group)
        seed_globals(self.group.dp_rank)
        expected, _ = self._single.step(State.of(self._take.layout, self._take.objective), alike)
        if 2 * _distinct(expected) <= batch.rows:
            return False
        found = computed(self._take.layout, part)
        found.outputs = gathered_outputs(found, expected, part, self.objective, self.group)
        return _distinct(found) < CORRELATED * _distinct(expected)

    # --- the result ---

    def _result(
        self, failure: Failure | None, steps: int, training: int, compared: Mode | None, notes: Sequence[str]
    ) -> Result:
        take, cause, module = self._take, "", ""
        if failure is not None:
            why_not, seeds = take.undecided(failure), ""
            located = Locator(take, failure, self.model).find()
            module = located.module or ""
            cause = f"in training mode, {located.text}"
            if not training:
                seeds = self._of_seeds(failure)
                cause = failure.where + located.text + seeds
            if why_not and not (seeds or failure.hint):
                return Result(self.dtype, notes=[why_not])
        worst, trains = take.judge.of_all_ranks(), self.optimizer is not None
        if trains and not cause and steps + training and not self._trained:
            self._note(
                "no parameter had a gradient other than zero, so that a wrong layout would look the same"
            )
            steps = training = 0
        quiet = self._modes.together.quiet if self._modes.together is not None else frozenset()
        if quiet:
            why = "each shard has its own statistics or masks"
            self._note(f"in eval mode in some steps: {listed(sorted(quiet))}: {why}")
        if training:
            self._note(f"in training mode, chunk by chunk: {plural(training, 'step')} more")
        limit, tolerance = (
            max((each.limit for each in worst.values()), default=0.0),
            take.judge.unmeasured.tolerance,
        )
        if limit > tolerance:
            why = self._narrowed or f"rounding exceeds {tolerance:g}"
            measured = f"a single device that rounds it otherwise differs from itself by {limit / MARGIN:.1e}"
            self._note(f"{why}; {measured}, and the limit is {limit:.1e}: smaller errors are not seen")
        elif self._narrowed:
            self._note(self._narrowed)
        return Result(
            self.dtype,
            steps,
            worst,
            [*dict.fromkeys([*self._notes, *notes, *take.notes])],
            failure.worst if failure is not None else None,
            cause,
            module,
            training,
            compared,
            self._unreached() if trains else (),
            self._gaps,
        )

    def _unreached(self) -> list[str]:
        """The parameters that are trained and never had a gradient that is not zero."""
        named = self.model.named_parameters()
        return [name for name, tensor in named if tensor.requires_grad and name not in self._trained]

    def _note(self, text: str) -> None:
        self._notes[text] = None

    @cached_property
    def _batches(self) -> list[Batch]:
        return [in_dtype(batch, self.dtype) for batch in self.batches]


def _distinct(step: Step) -> int:
    """How many rows of the outputs differ from each other, by more than rounding."""
    rows: list[Any] = [each.flatten(1) for each in step.outputs.values() if each.dim() > 1 and each.numel()]
    scaled = [tensor / tensor.abs().max().clamp(min=1e-300) for tensor in rows]
    return max((len(torch.unique((each * 1e9).round(), dim=0)) for each in scaled), default=0)
