"""Side by side: the layout and a single device take the same steps on the same batches.

The layout's step is taken between the backward and the optimizer of the single device's. Both optimizers get
the single device's gradients, so that errors of rounding do not grow from step to step::

    single device   forward, loss, backward |                                        | optimizer
    layout                                  | forward, loss, backward | compare | optimizer |

Every rank computes the single device's steps itself. Ranks agree on each error, so that all stop together.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from dpexp import tensors
from dpexp.config.alike import listed
from dpexp.config.ranges import plural
from dpexp.data.batch import Batch
from dpexp.data.objective import Objective
from dpexp.distributed.process_group import ProcessGroup
from dpexp.strategies.placed import StepEndedError
from dpexp.training.trainer import Trainer
from dpexp.verification.diagnosis.nonfinite import NonfiniteError, check_finite
from dpexp.verification.limits.compare import HIDES, Difference, Limits, whole_error
from dpexp.verification.limits.errors import Errors
from dpexp.verification.limits.norms import Tensors
from dpexp.verification.limits.parts import Parts, parts_of
from dpexp.verification.limits.small_tensors import distances, magnitudes
from dpexp.verification.modes.by_nature import WrittenByShards, is_statistic
from dpexp.verification.modes.carried import Carried, farther
from dpexp.verification.modes.chunks import Chunked
from dpexp.verification.modes.random_draws import Draws, Seeds, drawing_modules
from dpexp.verification.paths.unreached import Unreached
from dpexp.verification.steps.gathered_outputs import drop_scalars_apart, gathered_outputs
from dpexp.verification.steps.recorder import Recorder, Step, optimizer_numbers
from dpexp.verification.steps.step_parts import last_bits, parts_of_step


class DrawsRandomNumbersError(Exception):
    """The single device drew random numbers in these modules, so that no two layouts compute the same."""

    def __init__(self, names: set[str]) -> None:
        super().__init__(*sorted(names))
        self.names = names


class SingleDeviceError(Exception):
    """The single device cannot compute the step: in this type, say. ``where``: the model or the loss."""

    def __init__(self, cause: Exception, where: str) -> None:
        super().__init__(str(cause))
        self.cause, self.where = cause, where


class RefusedBatchError(Exception):
    """A batch made for verification (the number of its step) that the layout, or a single device, refuses."""

    def __init__(self, step: int, cause: Exception, by: str) -> None:
        super().__init__(step)
        self.step, self.cause, self.by = step, cause, by


ROUNDED = 8
"""Additions to a parameter, which round it, for each of which its update may be off by a last bit."""

NOT_COMPARABLE = "not comparable"
"""How the note begins that names steps in which rounding would hide an error."""

CLIPS = (0.5, 2.0)
"""Multiples of the norm of the gradients to clip by: with one of them they are scaled, with the other not."""


@dataclass
class Failure:
    """The first step that differs, and what both sides computed in it."""

    worst: Difference
    batch: Batch
    found: Step
    expected: Step


Report: TypeAlias = Callable[[Difference, str], object]
"""Gets a difference, and what differs in words, before anything else is computed for it."""


def no_report(difference: Difference, text: str) -> None:
    """Nobody waits for it."""


class DiffersError(Exception):
    """Ends the step of both sides before their optimizers."""

    def __init__(self, failure: Failure) -> None:
        super().__init__()
        self.failure = failure


@dataclass
class SideBySide:
    """``errors`` has those of all steps; with ``measures`` none of them fails.

    ``may_draw``: whether the model may draw random numbers. ``amplifies``: the module, in words, that makes
    errors of rounding large. ``seeds`` sets the random state for each chunk of rows of a single device that
    computes in chunks. ``made``: what is special about the batches of steps that are not a run's.
    """

    layout: Trainer
    reference: Trainer
    objective: Objective
    group: ProcessGroup
    limits: Limits
    written: WrittenByShards
    may_draw: bool = False
    measures: bool = False
    amplifies: str = ""
    seeds: Seeds | None = None
    made: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._initial = {name: tensor.clone() for name, tensor in self.reference.full_parameters().items()}
        self.errors = Errors(self.limits, self.group, self.measures)
        self.unreached, self.carried = Unreached(), Carried()
        self._began: Mapping[str, Parts] = {}
        self.steps, self.rows = 0, dict[int, int]()
        self.last_bits: dict[tuple[str, int, str], Sequence[float]] = {}
        self.notes: list[str] = []
        self._names = self.layout.parameters().keys() | self.layout.buffers().keys()
        names_by_rank = self.group.all_gather(self._names)
        self._has_stages = any(names != self._names for names in names_by_rank)

    def run(self, batches: Sequence[Batch]) -> Failure | None:
        """Take a step on each batch, until one differs."""
        parts = (self.objective.weighted(batch.part(self.group.rows), self.group) for batch in batches)
        for self.steps, (batch, part) in enumerate(zip(batches, parts, strict=True), 1):
            failure = self._step(batch, part)
            if failure:
                return failure
        failed = self.errors.failed(self.steps, self._after())
        return Failure(failed, batches[-1], Step(), Step()) if failed else None

    @property
    def compared(self) -> int:
        """The steps so far in which rounding would hide no error."""
        return self.steps - sum(step <= self.steps for step in self.errors.hidden)

    def hidden_notes(self) -> list[str]:
        """Which steps say nothing, because rounding would hide an error in them, and what to do."""
        if not self.errors.hidden:
            return []
        steps = [f"step {step} ({plural(self.rows[step], 'row')})" for step in sorted(self.errors.hidden)]
        first = self.errors.hidden[min(self.errors.hidden)]
        what = f"{first.kind} ({first.tensor})" if first.tensor else first.kind
        where = f" from {self.amplifies} on" if self.amplifies else ""
        return [
            f"{NOT_COMPARABLE}: {listed(steps)}, where rounding alone may change {what} by over "
            f"{HIDES:.0%}{where}, which would hide an error of this size: shards with more rows are better "
            "conditioned"
        ]

    def _step(self, batch: Batch, part: Batch) -> Failure | None:
        """One step of both sides, without the optimizers' where it differs; ``part`` is this rank's rows."""
        self.rows[self.steps] = batch.rows
        if self.seeds is not None:
            self.seeds.step = self.steps
        with ExitStack() as hooks:
            draws = hooks.enter_context(drawing_modules(self.reference.placed.module))
            expected = Recorder(
                self.reference, True, lambda: self._beside(hooks, draws, expected, batch, part)
            )
            hooks.enter_context(expected.hooks(order=True))
            try:
                with suppress(StepEndedError):
                    self.reference.step(batch, expected)
            except DiffersError as ended:
                return ended.failure
            except Exception as error:
                is_refused = not expected.is_complete or isinstance(error, NonfiniteError)
                if self.steps in self.made and is_refused and self._all_refuse(error):
                    raise RefusedBatchError(self.steps, error, "a single device refuses it with") from error
                if expected.is_complete or type(error) not in (RuntimeError, NotImplementedError):
                    raise  # else it is of PyTorch's operators
                where = "loss" if expected.step.outputs and expected.step.loss is None else "model"
                raise SingleDeviceError(error, where) from error
        if expected.step.written:
            self.written.replace_parameters(self.layout, self.reference, expected.step.written)
        return None

    def _beside(self, hooks: ExitStack, draws: Draws, expected: Recorder, batch: Batch, part: Batch) -> None:
        """The layout's step beside what the single device has computed; raises where they differ."""
        hooks.close()
        if self.seeds is not None:
            self.seeds(self.group.dp_rank)
        if draws.any and not self.may_draw:
            raise DrawsRandomNumbersError(draws.names)
        check_finite(expected.step, batch, self.steps)
        self.unreached.add(expected.step)
        found = Recorder(
            self.layout, bool(part.rows), lambda: self._compare(found.step, expected.step, batch, part)
        )
        try:
            with found.hooks(), self.carried.hooks(self.layout), suppress(StepEndedError):
                self.layout.step(part, found)
        except Exception as error:
            has_other_shapes = found.step.outputs and _shapes(found.step) != _shapes(expected.step)
            if not found.is_complete and self.group.size == 1 and has_other_shapes:
                self._compare(found.step, expected.step, batch, part)  # the loss has refused these outputs
            if not found.is_complete and self.steps in self.made and self._all_refuse(error):
                raise RefusedBatchError(self.steps, error, "the layout raises") from error
            raise

    def _all_refuse(self, error: Exception) -> bool:
        """Whether every rank has this error; otherwise some may wait for this one."""
        what = f"verification: {self.made[self.steps]}"  # which is left out from now on
        return self.group.all_failed(what, f"{type(error).__name__}: {error}")

    def _compare(self, found: Step, expected: Step, batch: Batch, part: Batch) -> None:
        """Raises DiffersError where the steps of the two sides differ before their optimizers."""
        self._combine(found, expected, part)
        self._began, (buffers, expected_buffers) = self.carried.begun, self._buffers_of(found, part)
        kinds = parts_of_step(found, expected)
        kinds["buffers"] = farther(parts_of(self._completed(buffers), expected_buffers), self._began)
        if self.measures:
            self.last_bits |= last_bits(kinds, expected, self.steps)
            self.amplifies = self.amplifies or _amplifies(found, expected)
        if self.measures and self.steps > 1:  # for the cause of a difference
            self.errors.failed(self.steps - 1, self._after())
        failed = self.errors.failed(self.steps, kinds)
        if failed:
            raise DiffersError(Failure(self._cause_before(failed), batch, found, expected))
        self._equalize(expected)
        self._clip(expected)

    def _buffers_of(
        self, found: Step, part: Batch
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Those to compare, of both sides; afterwards the layout has those that the single device keeps.

        A single device that computes in chunks has the statistics that batch norms of this rank must have.
        Ranks carry those of modules that they have called into the next step.
        """
        expected, statistics = self.reference.buffers(), dict[str, torch.Tensor]()
        self.carried = Carried()
        if isinstance(self.reference.placed.module, Chunked) and part.rows:
            of_chunks = self.reference.placed.module.buffers_after
            of_this = of_chunks[min(self.group.dp_rank, len(of_chunks) - 1)]
            kept = {name: tensor.clone() for name, tensor in expected.items() if is_statistic(name)}
            expected |= {name: of_this[name] for name in kept}
            statistics = {
                name: tensor.clone() for name, tensor in self.layout.buffers().items() if name in kept
            }
            if self.group.dp_size > 1:
                self.carried = Carried.of(statistics, kept, {name for name, _ in found.calls})
        buffers = self.written.replace_buffers(
            self.layout, self.reference, statistics.keys(), self.carried.own.keys()
        )
        return buffers | statistics, expected

    def began_apart(self, buffer: str) -> bool:
        """Whether the latest step began with other numbers in a buffer than the one before has left."""
        began = {buffer: self._began[buffer]} if buffer in self._began else {}
        return any(each.ratio > 1 for each in self.limits.judge("buffers", self.steps, began).values())

    def _combine(self, found: Step, expected: Step, part: Batch) -> None:
        """Give the layout's step the outputs, gradients and loss of all ranks."""
        vectors = [name for name, tensor in found.outputs.items() if tensor.dim()]
        of_shards = vectors if self.group.dp_size == 1 else list(expected.outputs)
        found.outputs = gathered_outputs(found, expected, part, self.objective, self.group)
        apart = drop_scalars_apart(found, expected, of_shards, self.limits, self.steps)
        self.notes += [note for note in apart if note not in self.notes]
        found.gradients = self._completed(found.gradients)
        if found.loss is not None:
            losses = self.group.all_gather_numbers([found.loss, part.weight])
            by_dp_rank = self.group.one_of_each_dp_rank(losses)
            found.loss = math.fsum(loss * weight for loss, weight in by_dp_rank if weight)

    def _equalize(self, expected: Step) -> None:
        """Give the layout the reference's dense gradients, from which its own differ by rounding."""
        shards = self.layout.placed.shards
        for name, parameter in self.layout.parameters().items():
            gradient, value = parameter.grad, expected.gradients.get(name)
            if gradient is not None and value is not None and not gradient.is_sparse | value.is_sparse:
                shards.load_full_tensor(name, gradient, value)

    def _clip(self, expected: Step) -> None:
        """Where the run clips, clip by twice the norm of the gradients in one update, by half in the next."""
        both = (self.layout.optimizers, self.reference.optimizers)
        clipping = [each for each in both if each is not None and each.clip_norm is not None]
        if clipping:
            norm = math.hypot(*magnitudes(expected.gradients).values())
            for optimizers in clipping:
                update = self.steps // optimizers.accumulate
                optimizers.clip_norm = CLIPS[update % len(CLIPS)] * norm / optimizers.accumulate

    def _completed(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Add the tensors of parameters and buffers that only other ranks have, as stages of a pipeline."""
        if not self._has_stages:
            return tensors
        everywhere = self.group.complete(tensors)
        return {
            key: tensor for key, tensor in everywhere.items() if key in tensors or self._is_elsewhere(key)
        }

    def _is_elsewhere(self, key: str) -> bool:
        """Whether this rank has not the tensor; an entry of the optimizer's state is ``tensor: key``."""
        return key.partition(": ")[0] not in self._names

    def _after(self) -> dict[str, dict[str, Parts]]:
        """What the optimizer has made, on both sides."""
        found = self._completed(self.layout.full_parameters())
        expected = self.reference.full_parameters()
        state = self._completed(optimizer_numbers(self.layout))
        return {
            "parameters": parts_of(found, expected),
            "updates": self._updates(found, expected),
            "optimizer": parts_of(state, optimizer_numbers(self.reference)),
        }

    def _updates(self, found: Tensors, expected: Tensors) -> dict[str, Parts]:
        """The parameters again, relative to what the steps have changed, without the rounding of the sums."""
        changed, apart = distances(expected, self._initial), distances(found, expected)
        sizes = magnitudes({name: expected[name] for name in apart})
        return {
            name: Parts([changed[name]], [max(0.0, off - ROUNDED * _eps(expected[name]) * sizes[name])])
            for name, off in apart.items()
        }

    def _cause_before(self, failed: Difference) -> Difference:
        """From the second step on, parameters that differ already are the cause: the optimizer's work."""
        if self.steps == 1 or failed.kind == "buffers":
            return failed
        return self.errors.failed(self.steps - 1, self._after()) or failed


def _amplifies(found: Step, expected: Step) -> str:
    """The first module whose outputs differ by so much that they would hide an error; empty without one."""
    for key in dict.fromkeys(expected.modules):
        pairs = zip(tensors.walk(found.calls.get(key)), tensors.walk(expected.calls[key]), strict=False)
        if any(whole_error(*pair) > HIDES for pair in pairs):
            return f"module '{key[0]}'" if key[0] else "the model itself"
    return ""


def _shapes(step: Step) -> list[torch.Size]:
    return [tensor.shape for tensor in step.outputs.values()]


def _eps(tensor: torch.Tensor) -> float:
    return torch.finfo(tensor.dtype).eps
