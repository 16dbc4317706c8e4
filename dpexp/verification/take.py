"""Take: a step of a layout, and the same step of a single device from the layout's own state.

    begin(batch)          expected = single.step(State.of(layout, objective), batch): gathered from all ranks
    computed(step, part)  outputs, loss, gradients and buffers of the layout, before its optimizer
    updated()             parameters and optimizer beside single.update(state, the layout's gradients)

    over a limit: the single device again, its last bits moved, before it is called wrong

``step`` makes a whole take of a step of a trainer. The layout computes as it does without it, and every step
is judged by itself: no error grows from step to step. Gradients that accumulate are judged after the last
batch of a window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from dpexp import devices
from dpexp.config.words import listed, plural
from dpexp.data.batch import Batch
from dpexp.data.halves import LIMIT
from dpexp.data.objective import Objective
from dpexp.data.rng import kept_globals, random_state, set_random_state
from dpexp.distributed.group import ProcessGroup
from dpexp.parallel.parallel_apply import intra_op_threads
from dpexp.strategies.modules import parts as parts_of_model
from dpexp.strategies.placed import StepEndedError
from dpexp.training.attributes import HiddenStateError
from dpexp.training.trainer import Trainer
from dpexp.verification.chunks import STATISTICS
from dpexp.verification.compare import (
    HIDES,
    Difference,
    Kinds,
    Noise,
    Parts,
    Tensors,
    magnitude,
    noise_of,
    numbers,
    parts_of,
    relative_error,
)
from dpexp.verification.failure import DiffersError, Failure, NonfiniteError, SingleDeviceError
from dpexp.verification.gathered_outputs import drop_scalars_apart, gathered_outputs
from dpexp.verification.judge import Judge
from dpexp.verification.mode import ALL_ROWS
from dpexp.verification.recorder import Computed, Recorder, Step, end_step
from dpexp.verification.rounding import (
    DRAWS,
    DRAWS_OF_SHORT,
    MARGIN,
    StepRounding,
    largest,
    mixed_precision,
)
from dpexp.verification.single_device import Buffers, SingleDevice
from dpexp.verification.state import State
from dpexp.verification.window import Window

OF_OPTIMIZER = ("parameters", "updates", "optimizer")
"""The kinds of tensors that the optimizer has made."""
ROUNDED = 2
"""Last bits by which a number of a parameter may differ after each addition to it."""
CLIPS = (0.5, 2.0)
"""Multiples of the norm of the gradients to clip by: with one of them they are scaled, with the other not."""
_ONE_OF = {"parameters": "parameter", "buffers": "buffer", "optimizer": "what the optimizer keeps of"}
NOT_COMPARABLE = "not comparable"
"""How the note begins that names steps in which rounding would hide an error."""
UNSTEADY = (
    f"{NOT_COMPARABLE}: a single device computes a step otherwise after another step. The model keeps "
    "something from one forward to the next that is no buffer (register_buffer makes a tensor one), or draws "
    "random numbers from a generator of its own (those of torch, Python and NumPy are set for each step)"
)
"""The note about a model whose steps depend on more than a state has."""
SEEDED_ALIKE = (
    "the ranks draw the same random numbers, so that each drops the same of its rows: "
    "seed each rank differently"
)
"""The note about ranks whose generators have the same state after a step in which they drew."""

_T = TypeVar("_T")


@dataclass
class Take:
    """``layout`` is a trainer, of copies or the run's own. Every rank must call every method.

    ``is_short``: the run computes in a shorter type than float64, beside which it is judged, too.
    ``records``: each step records the calls of modules; else a step that differs is taken again for them.
    ``objective`` is that of the layout's model. ``clips``: the limit of clipped gradients follows their norm.
    """

    layout: Trainer
    single: SingleDevice
    judge: Judge
    objective: Objective
    is_short: bool = False
    records: bool = False
    clips: bool = False
    rows: dict[int, int] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    steps: int = 0
    type_of_update: torch.dtype | None = None
    """The shortest type in which the optimizer computes, once its rounding was measured."""
    by_shards: set[str] = field(default_factory=set)
    """Buffers and parameters to which the forward of each shard writes another number."""

    def __post_init__(self) -> None:
        self.group: ProcessGroup = self.layout.group
        self._left: State | None
        self._forwarded: Tensors
        self._buffers: Buffers
        self._drew = False
        self.release()
        self._names = self.layout.parameters().keys() | self.layout.buffers().keys()
        self._has_stages = any(names != self._names for names in self.group.all_gather(self._names))

    def restart(self) -> None:
        """Forget the steps so far, with the gradients of batches since the optimizer's last one."""
        self.judge.restart()
        self.steps, self.by_shards = 0, set()
        self.release()

    def release(self) -> None:
        """Drop the copies of the model and of its gradients that the latest step has left."""
        self._left, self._forwarded, self._window = None, {}, Window()
        self._before_update: Tensors = {}
        self._expected, self._found, self._buffers = Step(), Step(), []
        self.single.release()

    # --- a take ---

    def check_placed(self) -> Failure | None:
        """Whether the model, as placed, has the numbers of the single device, which has taken no step."""
        placed = State.of(self.layout, self.objective)
        single = State.of(self.single.trainer, self.objective)
        found, buffers = self._completed(self.layout.buffers()), single.buffers[0]
        names = found.keys() & buffers.keys()
        of_layout, of_single = (self.single.followed(each.optimizer_numbers()) for each in (placed, single))
        kinds = {
            "parameters": parts_of(placed.parameters, single.parameters),
            "buffers": parts_of({n: found[n] for n in names}, {n: buffers[n] for n in names}),
            "optimizer": parts_of(of_layout, of_single),
        }
        failed = self.judge.failed(self.steps, kinds)
        if not failed:
            return None
        what = f"{failed.kind} ({failed.tensor}) differ by {failed.error:.1e}"
        return Failure(failed, text=f"after step 0: {what}: as placed, they are not the model's")

    def begin(self, batch: Batch) -> Failure | None:
        """What the single device computes from the layout's state, before the layout's step on the batch.

        Returns what of the state is wrong. Raises SingleDeviceError.
        """
        self.steps += 1
        self.rows[self.steps] = batch.rows
        state, failure = self._state()
        if failure is not None:
            return failure
        state = self._window.add(state, batch, self._expected.gradients)
        self._threads = torch.get_num_threads()
        try:
            self._expected, self._buffers = self.single.step(state, batch, hooks=self.records)
            loss = self._expected.loss
            if self.records and loss is not None and not math.isfinite(loss):
                advice = ": try a smaller learning rate" if self.steps > 1 else ""
                raise NonfiniteError(f"the loss of a single device is {loss} in step {self.steps}{advice}")
        except Exception as error:  # of any kind: it is the user's model
            raise SingleDeviceError(error) from error
        is_split = self.single.chunks.splits or self.group.size > 1
        self._drew, self._wrote = self.single.drew, self.single.wrote
        self.by_shards |= self._wrote.keys() if is_split else set()
        if self._drew and is_split and not self.single.mode.in_chunks:
            raise SingleDeviceError(RuntimeError("it draws random numbers, and each shard draws its own"))
        if is_split and self.single.mode.in_chunks and self.single.has_stored_loss:
            raise SingleDeviceError(RuntimeError("its loss reads what the forward of one shard has stored"))
        return None

    def computed(self, found: Step, part: Batch) -> Failure | None:
        """What differs in what the layout has computed of its part of the batch, before its optimizer.

        Rounding is measured with the threads of what is expected: their number can change bits.
        """
        self._look_at_seeds()
        self._random = random_state()
        with kept_globals(), intra_op_threads(self._threads):
            self._combine(found, self._expected, part)
            buffers = self._completed(self.layout.buffers())
            failed = self._judged_step(found, buffers if part.rows else None)
            failed = failed or self._judged_written()
            self._before_update = {name: each.clone() for name, each in self.layout.buffers().items()}
        self._found = found
        if failed is not None:
            return Failure(failed, self._window.batch, found, self._expected)
        if self.clips:
            self._clip(found)
        return None

    def _look_at_seeds(self) -> None:
        if not self._drew or self.group.dp_size == 1:
            return
        states = self.group.all_gather(torch.get_rng_state().numpy().tobytes())
        if len(set(self.group.one_of_each_dp_rank(states))) == 1:
            self.notes[SEEDED_ALIKE] = None

    def updated(self) -> Failure | None:
        """The optimizer's work on the layout's gradients, beside the single device's on the same."""
        if self.layout.optimizers is None:
            return None
        with kept_globals():
            state = self._window.state
            state = replace(state, parameters={**state.parameters, **self._forwarded})
            try:
                failed = self._judged_update(state, self._found.gradients)
            except HiddenStateError as error:
                raise SingleDeviceError(error) from error
        if failed is None:
            return None
        return Failure(failed, self._window.batch, self._found, self._expected, before=state.parameters)

    def step(self, batch: Batch, part: Batch, updates: bool = True) -> Failure | None:
        """The layout's step on its part of a global batch, as a take; ``updates``: with its optimizer's."""
        failure = self.begin(batch)
        if failure is not None:
            return failure

        def compare() -> None:
            failure = self.computed(found.step, part)
            if failure is not None:
                raise DiffersError(failure)
            if not updates:
                raise StepEndedError

        found = Recorder(self.layout, bool(part.rows), compare, with_loss=True)
        try:
            with found.hooks() if self.records else nullcontext():
                self.layout.step(part.copied(), found)
        except DiffersError as ended:
            if not self.records:
                self._name_modules(ended.failure, part)
            return ended.failure
        except StepEndedError:
            self._left = None  # a forward may have counted
            return None
        except Exception:
            shapes, wanted = _shapes(found.step), _shapes(self._expected)
            if found.is_complete or self.group.size > 1 or not shapes or shapes == wanted:
                raise
            failure = self.computed(found.step, part)  # the loss has refused these outputs
            if failure is None:
                raise
            return failure
        if not found.is_complete:
            raise RuntimeError(
                "the layout's step has not called backward_ended of its observer (loss_ended, where nothing "
                "is trained), so nothing of it can be compared: docs/custom-layouts.md has a step that does"
            )
        return self.updated()

    def check_window(self) -> Failure | None:
        """Whether a window of several batches, after its last, is one batch of all its rows.

        Only where no row depends on those beside it. Windows that cannot be joined are not looked at.
        """
        optimizers = self.layout.optimizers
        if optimizers is None or optimizers.batches or len(self._window) < 2:
            return None
        try:
            error = self._window.apart_from_one_batch(self.single)
        except Exception:  # of any kind: the user's model need not take all rows, as of other lengths
            return None
        limit = max(LIMIT, 1000 * torch.finfo(self.single.dtype).eps)
        if not max(self.group.all_gather(error)) > limit:
            return None
        text = (
            f"after step {self.steps}: the gradients of {plural(len(self._window), 'batch')}, averaged, are "
            f"not that of all their rows (off by {error:.1e}): the loss is not a mean over rows. Masked "
            "targets and class weights make each batch divide by another number: compute the rows in one "
            "batch, or divide by a number that is the same for all"
        )
        return Failure(Difference("gradients", error, step=self.steps, limit=limit), text=text)

    def evaluate(self, batch: Batch) -> Failure | None:
        """Outputs in eval mode, where they draw no random numbers; every rank computes all rows."""
        self.steps += 1
        self.rows[self.steps] = batch.rows
        state, failure = self._state()
        if failure is not None:
            return failure
        expected = self.single.evaluate(state, batch, hooks=self.records)
        self._left = None  # a forward in eval mode may write to buffers, and to a table with a largest norm
        if self.single.drew:
            return None
        recorder = Recorder(self.layout, True, lambda: None)
        with recorder.hooks() if self.records else nullcontext():
            outputs = self.layout.evaluate(batch.copied())
        recorder.forward_ended(outputs)
        found = recorder.step
        if self.group.dp_rank:
            found.calls = {}  # those of the first ranks are of all rows
        for name in [name for name, output in expected.outputs.items() if not output.dim()]:
            del expected.outputs[name]  # replicas have one each, as in training
            found.outputs.pop(name, None)
        short, wanted = self._shorter(found, expected), Computed(expected, {})
        rounding = StepRounding(
            Computed(found, {}),
            wanted,
            lambda draw: Computed(
                _alike(self._again(lambda one: one.evaluate(state, batch, draw), draw, short), expected), {}
            ),
            lambda: wanted if short else None,
            self.judge.unmeasured,
        )
        failed = self.judge.failed(self.steps, rounding.plain, rounding.measured, DRAWS)
        return Failure(failed, batch, found, expected, in_eval_mode=True) if failed else None

    # --- the state ---

    @property
    def latest(self) -> Step:
        """What the single device has computed in the latest step."""
        return self._expected

    def check_state(self) -> Failure | None:
        """What of the layout's state is not the same on all ranks."""
        return self._state()[1]

    def _state(self) -> tuple[State, Failure | None]:
        """The layout's state, and what is wrong with it: ranks apart, or a change since the last take."""
        state = State.of(self.layout, self.objective)
        apart = state.apart(self.group) if self.group.size > 1 else {}
        for name, (own, expected) in apart.items():
            failed = self.judge.failed(self.steps, {"parameters": parts_of({name: own}, {name: expected})})
            if failed:
                text = f"parameter '{name}' is not the same on all ranks that have it"
                text += f" (apart by {failed.error:.1e}): the ranks have trained apart"
                return state, Failure(failed, text=text)
        if not any(self.group.all_gather(self._left is not None)):
            return state, None
        left, now = (self._kept(each) for each in (self._left or state, state))
        failed = self.judge.failed(self.steps, {kind: parts_of(now[kind], left[kind]) for kind in left})
        if failed:
            text = (
                f"{_ONE_OF[failed.kind]} '{failed.tensor}' is not as the step before has left it (apart by "
            )
            text += (
                f"{failed.error:.1e}): a thread, a hook or a collective that nothing waits for wrote to it"
            )
            return state, Failure(failed, text=text)
        return state, None

    def _kept(self, state: State) -> dict[str, Tensors]:
        """What nothing but a step changes."""
        return {
            "parameters": state.parameters,
            "buffers": _of_rank(state.buffers, self.group),
            "optimizer": self.single.followed(state.optimizer_numbers()),
        }

    def _parameters(self) -> dict[str, torch.Tensor]:
        full = self.layout.full_parameters()
        return self._completed({name: each.to(devices.HOST, copy=True) for name, each in full.items()})

    def _completed(self, own: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Add the tensors of parameters and buffers that only other ranks have, as stages of a pipeline."""
        if not self._has_stages:
            return own
        everywhere = self.group.complete(own)
        return {
            key: tensor
            for key, tensor in everywhere.items()
            if key in own or key.partition(": ")[0] not in self._names
        }

    # --- what a step has computed ---

    def _combine(self, found: Step, expected: Step, part: Batch) -> None:
        """Give the layout's step the outputs, gradients and loss of all ranks."""
        objective = self.single.objective
        vectors = [name for name, tensor in found.outputs.items() if tensor.dim()]
        of_shards = vectors if self.group.dp_size == 1 else list(expected.outputs)
        found.outputs = gathered_outputs(found, expected, part, objective, self.group)
        self.notes |= dict.fromkeys(
            drop_scalars_apart(found, expected, of_shards, self.judge.unmeasured, self.steps)
        )
        found.gradients = self._completed(found.gradients)
        if found.loss is not None:
            losses = self.group.all_gather([found.loss, part.weight])
            by_dp_rank = self.group.one_of_each_dp_rank(losses)
            found.loss = math.fsum(loss * weight for loss, weight in by_dp_rank if weight)

    @property
    def _closes(self) -> bool:
        """Whether the batch is the last of its window, so that the gradients are those of all its batches."""
        optimizers = self.layout.optimizers
        return optimizers is None or len(self._window) == optimizers.accumulate

    def _judged_step(self, found: Step, buffers: Tensors | None) -> Difference | None:
        """What differs before the optimizer; a rank's buffers begin from those of the first, or its own."""
        errors = dict(self.judge.errors)
        failed = self._judged_from(found, buffers, from_own=False)
        if failed is not None and failed.kind == "buffers" and len(self._window.state.buffers) > 1:
            self.judge.errors = errors
            _, self._buffers = self._window.replayed(self.single, None, from_own=True)
            failed = self._judged_from(found, buffers, from_own=True)
        return failed

    def _judged_from(self, found: Step, buffers: Tensors | None, *, from_own: bool) -> Difference | None:
        wanted, short = self._expected, self._shorter(found, self._expected)
        names = self._compared(_of_rank(self._buffers, self.group), buffers) if buffers is not None else []

        def of(step: Step, of_chunks: Buffers) -> Computed:
            step = _alike(step if self._closes else replace(step, gradients={}), wanted)
            own = _of_rank(of_chunks, self.group)
            return Computed(step, {name: own[name] for name in names if name in own})

        expected = of(wanted, self._buffers)
        rounding = StepRounding(
            Computed(found if self._closes else replace(found, gradients={}), buffers or {}),
            expected,
            lambda draw: of(
                *self._again(lambda one: self._window.replayed(one, draw, from_own=from_own), draw, short)
            ),
            lambda: expected if short and not self.is_short else self._in_float64(of),
            self.judge.unmeasured,
        )
        draws = DRAWS_OF_SHORT if short or self.is_short else DRAWS
        return self.judge.failed(self.steps, rounding.plain, rounding.measured, draws)

    def _judged_written(self) -> Difference | None:
        """What differs of the parameters that the forward has changed, from which the optimizer goes on."""
        now = self._parameters() if self._wrote else {}
        self._forwarded = found = {name: now[name] for name in self._wrote if name in now}
        if not found:
            return None
        wanted = {name: self._wrote[name] for name in found if name not in self.by_shards}
        kinds = {"parameters": parts_of({name: found[name] for name in wanted}, wanted)}
        return self.judge.failed(self.steps, kinds)

    def _shorter(self, found: Step, expected: Step) -> torch.dtype | None:
        """The type of the layout's outputs, or of its mixed precision, where it is shorter than usual."""
        own = [each for name, each in found.eps.items() if name is not None]
        own += [torch.finfo(each).eps for each in mixed_precision(self.layout.placed.module)]
        of_single = max((each for name, each in expected.eps.items() if name is not None), default=0.0)
        eps = max(self.group.all_gather(max(own, default=0.0)))
        kinds = (torch.bfloat16, torch.float16, torch.float32)
        return next((kind for kind in kinds if torch.finfo(kind).eps == eps > of_single), None)

    def _in_float64(self, of: Callable[[Step, Buffers], Computed]) -> Computed | None:
        """The step in float64; None where the model does not compute in it, or draws other random numbers."""
        if not self.is_short or self._drew:
            return None
        try:
            found = of(*self._window.replayed(self.single.again(torch.float64, autocast=""), None))
        except (RuntimeError, NotImplementedError, TypeError):  # of operators that have no float64
            found = None
        return found if all(self.group.all_gather(found is not None)) else None

    def _again(
        self, compute: Callable[[SingleDevice], _T], draw: int | None, short: torch.dtype | None = None
    ) -> _T:
        """What another single device computes: on the layout's accelerator, which has kernels of its own.

        On the host if it draws random numbers, of which an accelerator has others.
        """
        physical = [devices.physical(each) for each in self.layout.placed.devices]
        others = [] if draw is None or self._drew else [each for each in physical if each != devices.HOST]
        return compute(self.single.again(short, *others[:1]))

    def _compared(self, wanted: Tensors, found: Tensors) -> list[str]:
        """The buffers to compare: in chunks all that are known, else what no shard writes from its rows."""
        if self.single.mode.in_chunks:
            is_known = self.single.chunks.is_known
            return [name for name in wanted if is_known or name.rpartition(".")[2] in STATISTICS]
        before, tolerance = self._window.state.buffers[0], self.judge.unmeasured.tolerance
        shards = {
            f"{part.name}.{key}".lstrip(".")
            for part in parts_of_model(self.layout.placed.module)
            if self.single.chunks.split_within(part.name)
            or (self.group.dp_size > 1 and not isinstance(part.module, nn.SyncBatchNorm))
            for key in part.module._buffers
        }
        written = {
            name
            for name in shards & wanted.keys()
            if not _is_same(wanted[name], before.get(name))
            and not (self.single.mode.note == ALL_ROWS and name.rpartition(".")[2] in STATISTICS)
            and (name not in found or relative_error({name: found[name]}, {name: wanted[name]}) > tolerance)
        }
        self.by_shards |= written
        return [name for name in wanted if name not in written]

    def _clip(self, found: Step) -> None:
        """Where the run clips, clip by twice the norm of the gradients in one update, by half in the next."""
        both = [each.optimizers for each in (self.layout, self.single.trainer) if each.optimizers is not None]
        for optimizers in both:
            if optimizers.clip_norm is not None:
                norm = math.hypot(*map(magnitude, found.gradients.values()))
                update = self.steps // optimizers.accumulate
                optimizers.clip_norm = CLIPS[update % len(CLIPS)] * norm / optimizers.accumulate

    # --- what the optimizer has made ---

    def _judged_update(self, state: State, gradients: Tensors) -> Difference | None:
        after = self._updated(self.single, state, gradients)
        self._left = State.of(self.layout, self.objective)
        mine, now = self._kept(self._left), self.layout.buffers()
        written = {n for n, each in state.buffers[0].items() if not _is_same(after["buffers"].get(n), each)}
        before = {name: each for name, each in self._before_update.items() if name not in written}

        def kinds(of: Mapping[str, Tensors]) -> Kinds:
            return {
                "parameters": parts_of(of["parameters"], after["parameters"]),
                "updates": _updates(of["parameters"], after, state),
                "optimizer": parts_of(of["optimizer"], after["optimizer"]),
            }

        found = {
            **kinds(mine),
            "buffers": parts_of({name: now[name] for name in before if name in now}, before),
        }

        def updated(single: SingleDevice, draw: int) -> dict[str, dict[str, Any]]:
            after = self._updated(single, state, gradients, draw)
            self.type_of_update = single.narrowest
            return after

        def measured(draw: int) -> tuple[Kinds, Noise]:
            after = self._again(lambda one: updated(one, draw), draw)
            return found, largest([noise_of(kinds(after))])

        return self.judge.failed(self.steps, found, measured, DRAWS)

    def _updated(
        self, single: SingleDevice, state: State, gradients: Tensors, draw: int | None = None
    ) -> dict[str, Any]:
        """The single device's update, with the random numbers that the layout's optimizer had on the host."""
        if self.layout.placed.is_on_host:
            set_random_state(self._random)
        return single.update(state, gradients, draw)

    # --- what is not compared ---

    @property
    def compared(self) -> int:
        """The steps so far in which rounding would hide no error."""
        return self.steps - sum(step <= self.steps for step in self.judge.hidden)

    def uncompared(self) -> list[str]:
        """Buffers that shards write, and steps in which rounding would hide an error, in words."""
        names = listed(sorted(set().union(*self.group.all_gather(self.by_shards))))
        written = [f"each shard writes to {names} from its own rows: not compared"] if names else []
        if not self.judge.hidden:
            return written
        steps = [f"step {step} ({plural(self.rows[step], 'row')})" for step in sorted(self.judge.hidden)]
        first = self.judge.hidden[min(self.judge.hidden)]
        what = f"{first.kind} ({first.tensor})" if first.tensor else first.kind
        why = "shards with more rows are better conditioned"
        if first.kind in OF_OPTIMIZER and (short := self.short_optimizer()):
            why = f"{short}: take another one to compare the layout"
        return [
            *written,
            f"{NOT_COMPARABLE}: {listed(steps)}, where rounding alone may change {what} by over "
            f"{HIDES:.0%}, which would hide an error of this size: {why}",
        ]

    def short_optimizer(self) -> str:
        """That the optimizer computes in a shorter type than the parameters have, in words; else empty."""
        kind, usual = self.type_of_update, self.single.dtype
        if kind is None or torch.finfo(kind).eps <= torch.finfo(usual).eps:
            return ""
        name = str(kind).removeprefix("torch.")
        return f"the optimizer ({self.layout.optimizers}) computes in {name} inside"

    # --- after a failure ---

    def undecided(self, failure: Failure) -> str:
        """Why a failure says nothing about the layout; empty where it does. Every rank must call this."""
        if not failure.batch.rows or failure.worst.kind in OF_OPTIMIZER:
            return ""
        state, error = State.of(self.layout, self.objective), 0.0
        with suppress(Exception):  # of any kind: what has failed is known
            error = self.single.apart_from_itself(state, failure.batch, in_eval_mode=failure.in_eval_mode)
        return UNSTEADY if max(self.group.all_gather(error)) > failure.worst.error / MARGIN else ""

    def _name_modules(self, failure: Failure, part: Batch) -> None:
        """Take the step again with hooks, which it has not had, and add what they record."""
        if failure.worst.kind == "buffers":
            return
        self.layout.clear()
        state, batch = self._window.state, self._window.batch
        with suppress(Exception):  # of any kind: what has failed is known
            again, _ = self.single.step(state, batch, hooks=True)
            found = Recorder(self.layout, bool(part.rows), end_step, with_loss=True)
            with kept_globals(), found.hooks(order=True), suppress(StepEndedError):
                set_random_state(state.random[self.group.dp_rank])
                self.layout.step(part.copied(), found)
            failure.found.calls = found.step.calls
            failure.expected.calls, failure.expected.modules = again.calls, again.modules
            failure.expected.order = again.order


def _shapes(step: Step) -> list[torch.Size]:
    return [tensor.shape for tensor in step.outputs.values()]


def _alike(step: Step, wanted: Step) -> Step:
    """The step with the outputs that are compared."""
    return replace(
        step, outputs={name: step.outputs[name] for name in wanted.outputs if name in step.outputs}
    )


def _of_rank(buffers: Sequence[Tensors], group: ProcessGroup) -> Tensors:
    """Those after the chunk of this rank, or after all rows."""
    return buffers[min(group.dp_rank, len(buffers) - 1)]


def _is_same(tensor: torch.Tensor | None, before: torch.Tensor | None) -> bool:
    """Whether the single device did not write to a buffer."""
    if tensor is None or before is None:
        return tensor is before
    return before.shape == tensor.shape and torch.equal(before, tensor)


def _updates(found: Tensors, after: Mapping[str, Any], state: State) -> dict[str, Parts]:
    """What a step has changed, without the rounding of the sums: some last bits of each number."""
    updates = {}
    for name, expected in after["parameters"].items():
        if name not in found or found[name].shape != expected.shape:
            continue
        wanted, before = numbers(expected), numbers(state.parameters[name])
        slack = ROUNDED * after["added"].get(name, 1) * torch.finfo(expected.dtype).eps * np.abs(wanted)
        with np.errstate(over="ignore", invalid="ignore"):
            off = np.maximum(np.abs(numbers(found[name]) - wanted) - slack, 0)
            norms = [float(np.linalg.norm(each)) for each in (wanted - before, off)]
        updates[name] = Parts(norms[:1], [math.inf if math.isnan(norms[1]) else norms[1]])
    return updates
