"""Comparison: the steps of a layout and of a single device in one type and one mode."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TypeAlias

import torch
from torch import nn

from dpexp import devices, tensors
from dpexp.data.batch import Batch
from dpexp.data.objective import Objective
from dpexp.distributed.process_group import ProcessGroup
from dpexp.strategies import sharding_rules
from dpexp.strategies.placed import Placed
from dpexp.strategies.ranks.sync_batch_norm import on_one_device
from dpexp.training.optimizer_choice import OptimizerFactory
from dpexp.training.trainer import Trainer
from dpexp.verification.diagnosis.locate import Locator
from dpexp.verification.limits.compare import Difference, Limits, Noise
from dpexp.verification.limits.rounding import (
    CERTAIN,
    DRAWS,
    MARGIN,
    NEGLIGIBLE,
    OtherwiseRoundedTrainer,
    largest,
    of_rounding,
)
from dpexp.verification.modes.by_nature import WrittenByShards, hook_notes
from dpexp.verification.modes.mode import Mode
from dpexp.verification.paths.evaluation import evaluate, evaluations
from dpexp.verification.paths.late import LateCollectives, dependence
from dpexp.verification.paths.reaching import rows_of
from dpexp.verification.result import TOLERANCE, Result
from dpexp.verification.steps.gathered_outputs import gathered_outputs
from dpexp.verification.steps.model_copy import copied
from dpexp.verification.steps.recorder import Step, computed, fewer_collections
from dpexp.verification.steps.side_by_side import Failure, Report, SideBySide, no_report

LayOut: TypeAlias = Callable[[nn.Module], Placed]


@dataclass(frozen=True)
class Comparison:
    """Trains a copy of the model in the layout and one on the host, in one type and mode.

    ``amplifying`` gets the modules, in words, that make errors of rounding so large that they hide others.
    ``narrowed`` says why the type is not a wider one, ``made`` what is special about batches of steps that
    are not a run's. ``evaluates``: the trained weights are compared in eval mode, too. ``report`` gets what
    differs before it is located.
    """

    model: nn.Module
    lay_out: LayOut
    batches: Sequence[Batch]
    objective: Objective
    optimizer: OptimizerFactory | None
    group: ProcessGroup
    dtype: torch.dtype
    narrowed: str
    mode: Mode
    made: Mapping[int, str] = field(default_factory=dict)
    evaluates: bool = False
    report: Report = no_report
    amplifying: list[str] = field(default_factory=list)

    def result(self) -> Result:
        """Errors that may be rounding are judged by that of the single device, which is measured then.

        It is measured in one way after the other, until one explains the errors.
        Every rank must call this, and gets the same result.
        """
        result, draws = self._compared(self._limits), list[Noise]()
        without_draw: Noise = {}
        while result.failed is not None and not result.cause:
            without_draw = without_draw or self._noise(result.mode, None)
            draws.append(self._noise(result.mode, len(draws)))
            noise, is_last = of_rounding(largest(draws), without_draw), len(draws) == DRAWS
            if is_last or result.failed.apart <= self._allowed(result.failed, noise):
                result = self._compared(replace(self._limits, noise=noise), is_last)
        return result

    @property
    def _limits(self) -> Limits:
        """Those without any measurement."""
        eps = torch.finfo(self.dtype).eps
        return Limits(eps if self.narrowed else TOLERANCE[self.dtype], NEGLIGIBLE[self.dtype], eps=eps)

    def _allowed(self, failed: Difference, noise: Noise) -> float:
        """What rounding explains of a difference, on every rank."""
        own = max(noise.get((failed.kind, failed.step, failed.tensor), (0.0,)))
        by_rank: list[float] = self.group.all_gather(own)
        return min(by_rank)

    def _plain_noise(self, failed: Difference, limits: Limits, mode: Mode) -> Noise | None:
        """The noise up to a difference that is plainly not rounding; None where it may be.

        A draw that moves nothing does not tell: the next one may.
        """
        if math.isinf(failed.apart):
            return limits.noise
        for draw in range(0 if limits.noise else DRAWS):
            noise = largest([self._noise(mode, draw, failed.step)])
            allowed = self._allowed(failed, noise)
            if allowed or draw == DRAWS - 1:
                return noise if failed.apart > CERTAIN * allowed else None
        return None

    def _compared(self, limits: Limits, is_last: bool = False) -> Result:
        with fewer_collections(self.model), devices.without_cudnn():
            return self._stepped(limits, is_last)

    def _stepped(self, limits: Limits, is_last: bool) -> Result:
        layout = self._layout(self.mode)
        mode = self.mode.of_layout(layout.placed, self.model, self.group, self.optimizer is not None)
        reference, notes = self._single_device(mode)
        written = WrittenByShards(dict(self.model.named_buffers()), self.group.dp_size, limits.tolerance)
        sides = self._sides(layout, reference, self.group, limits, written, mode)
        failure, cause = sides.run(self._batches) or self._evaluated(sides), ""
        if failure is not None:
            noise = limits.noise if is_last else self._plain_noise(failure.worst, limits, mode)
            if noise is not None:
                self._apply(noise, sides, failure)
                cause = Locator(sides, failure, self.model, self.report).message()
        worst = sides.errors.of_all_ranks()
        notes += [
            *self._rounding_notes(limits, worst),
            *sides.hidden_notes(),
            *sides.notes,
            *sharding_rules.notes(),
            *hook_notes(self.model, self.group.dp_size),
            *written.notes(self.group),
        ]
        failed = failure.worst if failure is not None else None
        trains = self.optimizer is not None
        return Result(
            worst,
            sides.compared,
            notes,
            cause,
            mode,
            self.dtype,
            failed,
            unreached_modules=sides.unreached.modules(self.model),
            unreached_parameters=sides.unreached.parameters(self.model) if trains else (),
        )

    def _apply(self, noise: Noise, sides: SideBySide, failure: Failure) -> None:
        """Let what was measured be the limit of what has failed."""
        failed, allowed = failure.worst, self._allowed(failure.worst, noise)
        limit = failed.error * allowed / failed.apart if allowed else 0.0
        failure.worst = replace(failed, limit=max(failed.limit, limit))
        sides.limits = replace(sides.limits, noise=noise)

    def dependence(self, mode: Mode) -> str:
        """How a step of the layout depends on when its collectives end; every rank must call this."""
        return dependence(
            partial(self._late_step, mode), self.group, TOLERANCE.get(self.dtype, torch.finfo(self.dtype).eps)
        )

    def _late_step(self, mode: Mode, collectives: LateCollectives) -> Step:
        part = self.objective.weighted(self._batches[0].part(self.group.rows), self.group)
        layout = self._layout(mode)
        mode.of_layout(layout.placed, self.model, self.group, True)
        torch.manual_seed(0)
        with collectives:
            step = computed(layout, part)
            for found in (step.outputs, step.gradients):  # before what is late writes to them
                found.update({name: tensor.clone() for name, tensor in found.items()})
        return step

    def distinct_rows(self) -> tuple[int, int]:
        """Rows of outputs that differ of a batch whose rows are alike: of the layout and of a single device.

        In training mode, only random numbers tell them apart.
        """
        alike = rows_of(self._batches[0], [0] * self._batches[0].rows)
        part = self.objective.weighted(alike.part(self.group.rows), self.group)
        reference, _ = self._single_device(self.mode)
        expected = computed(reference, alike)
        layout = self._layout(self.mode)
        seed = self.mode.seeds
        assert seed is not None
        seed(self.group.dp_rank)
        found = computed(layout, part)
        found.outputs = gathered_outputs(found, expected, part, self.objective, self.group)
        return _distinct(found), _distinct(expected)

    def _layout(self, mode: Mode) -> Trainer:
        model, _ = self.copy(mode)
        return Trainer(self.lay_out(model), self.objective.loss, self.optimizer, group=self.group)

    def _single_device(self, mode: Mode, of: type[Trainer] = Trainer) -> tuple[Trainer, list[str]]:
        """The single device, and notes about the mode of its modules."""
        model, notes = self.copy(mode)
        placed = on_host(mode.of_single_device(model))
        return of(placed, self.objective.on_one_device, self.optimizer), notes

    def _sides(
        self,
        layout: Trainer,
        reference: Trainer,
        group: ProcessGroup,
        limits: Limits,
        written: WrittenByShards,
        mode: Mode,
        measures: bool = False,
    ) -> SideBySide:
        return SideBySide(
            layout,
            reference,
            self.objective,
            group,
            limits,
            written,
            may_draw=mode.may_draw,
            measures=measures,
            amplifies=next(iter(self.amplifying), ""),
            seeds=mode.seeds,
            made={**self.made, **evaluations(self._batches, len(self._batches))},
        )

    def _evaluated(self, sides: SideBySide) -> Failure | None:
        """How the trained weights differ in an evaluation, where a run of this mode has one."""
        if self.optimizer is None or not self.evaluates or self.mode.may_draw:
            return None
        return evaluate(sides, self._own_batches)

    @property
    def _own_batches(self) -> list[Batch]:
        """Those of the run."""
        return [batch for step, batch in enumerate(self._batches, 1) if step not in self.made]

    def _noise(self, mode: Mode, draw: int | None, steps: int | None = None) -> Noise:
        """How far apart a single device is from itself when every operation reads other last bits.

        In so many steps, or in all, and evaluations. Without a draw (None) it reads the same.
        """
        rounded, _ = self._single_device(mode, OtherwiseRoundedTrainer)
        assert isinstance(rounded, OtherwiseRoundedTrainer)
        rounded.draw = draw
        reference, _ = self._single_device(mode)
        written = WrittenByShards({}, 1, math.inf)
        one_process, limits = ProcessGroup(), self._limits if draw is None else Limits(math.inf)
        sides = self._sides(rounded, reference, one_process, limits, written, mode, measures=True)
        sides.run(self._batches[:steps])
        if steps is None or steps > len(self._batches):
            self._evaluated(sides)
        if sides.amplifies:
            self.amplifying.append(sides.amplifies)
        return largest([sides.errors.noise, sides.last_bits], 1) if draw is not None else sides.errors.noise

    def _rounding_notes(self, limits: Limits, worst: Mapping[str, Difference]) -> list[str]:
        """What was allowed because rounding was measured, and is therefore not seen."""
        limit = max((each.limit for each in worst.values()), default=0.0)
        if limit <= limits.tolerance:
            return [self.narrowed] if self.narrowed else []
        why = self.narrowed or f"rounding exceeds {limits.tolerance:g}"
        measured = f"a single device that rounds it otherwise differs from itself by {limit / MARGIN:.1e}"
        return [f"{why}; {measured}, and the limit is {limit:.1e}: smaller errors are not seen"]

    @cached_property
    def _batches(self) -> list[Batch]:
        """The batches in the dtype of the comparison."""
        return [in_dtype(batch, self.dtype) for batch in self.batches]

    def copy(self, mode: Mode) -> tuple[nn.Module, list[str]]:
        """The model in this type and mode, and notes about the mode."""
        model = copied(self.model, self.dtype)
        return model, mode.prepare(model)


def _distinct(step: Step) -> int:
    """How many rows of the outputs differ from each other, by more than rounding."""
    rows = [tensor.flatten(1) for tensor in step.outputs.values() if tensor.dim() > 1 and tensor.numel()]
    scaled = [tensor / tensor.abs().max().clamp(min=1e-300) for tensor in rows]
    return max((len(torch.unique((each * 1e9).round(), dim=0)) for each in scaled), default=0)


def in_dtype(batch: Batch, dtype: torch.dtype) -> Batch:
    """The batch with floating-point inputs and targets of this type."""
    inputs, targets = tensors.cast((batch.inputs, batch.targets), dtype)
    return replace(batch, inputs=inputs, targets=targets)


def on_host(model: nn.Module) -> Placed:
    """The model as a single device has it."""
    return Placed(
        devices.place(on_one_device(model), devices.HOST), devices.HOST, devices.HOST, (devices.HOST,)
    )
