"""Take: a step of a layout, and the same step of a single device from the layout's own state.

    _begin      state      that of the layout, gathered from all ranks
                expected   single.step(state, batch)
    _computed   found      outputs, loss, gradients and buffers of the layout, before its optimizer
    _updated               parameters and optimizer beside single.update(state, the layout's gradients)

    over a limit: the single device again, its last bits moved, before it is called wrong     references

A take is a function: from what is known, a trial, to another trial. The layout computes as it does without
it, and every step is judged by itself: no error grows from step to step. Gradients that accumulate are judged
after the last batch of a window.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace

import torch

from dpexp.data.batch import Batch
from dpexp.data.rng import kept_globals, random_state, set_random_state
from dpexp.parallel.parallel_apply import intra_op_threads
from dpexp.strategies.placed import StepEndedError
from dpexp.training.optimizer_state import HiddenStateError
from dpexp.verification.checks import checked_state
from dpexp.verification.compare import Tensors, magnitude, parts_of
from dpexp.verification.failure import Failure, NonfiniteError, SingleDeviceError
from dpexp.verification.gathered_outputs import gathered_outputs, scalars_apart
from dpexp.verification.judge import judge
from dpexp.verification.recorder import Recorder, Step, end_step
from dpexp.verification.references import judged_outputs, judged_step
from dpexp.verification.sides import Sides
from dpexp.verification.trial import Trial
from dpexp.verification.updates import BeforeUpdate, judged_update
from dpexp.verification.window import Window

CLIPS = (0.5, 2.0)
"""Multiples of the norm of the gradients to clip by: with one of them they are scaled, with the other not."""
SEEDED_ALIKE = (
    "the ranks draw the same random numbers, so that each drops the same of its rows: "
    "seed each rank differently"
)
"""The note about ranks whose generators have the same state after a step in which they drew."""


@dataclass(frozen=True)
class Expected:
    """What a single device computes from the layout's state, before the layout's step on the batch.

    The latest of the ``window`` are this state and batch. ``threads`` are those with which it has computed:
    their number can change bits.
    """

    window: Window
    step: Step
    threads: int


def take_step(sides: Sides, trial: Trial, batch: Batch, part: Batch, *, updates: bool = True) -> Trial:
    """The layout's step on its part of a global batch, as a take; ``updates``: with its optimizer's.

    Every rank must call this. Raises SingleDeviceError, what the layout raises, and RuntimeError for a step
    that does not report to its observer.
    """
    layout = sides.layout
    trial, expected = _begin(sides, replace(trial, rows=(*trial.rows, batch.rows)), batch)
    if expected is None:
        return trial
    before: BeforeUpdate | None = None

    def compare() -> None:
        nonlocal trial, before
        trial, before = _computed(sides, trial, expected, recorder.step, part)
        if trial.failure is not None or not updates:
            raise StepEndedError

    recorder = Recorder(layout, bool(part.rows), compare, with_loss=True)
    try:
        with recorder.hooks() if sides.records else nullcontext():
            layout.step(part.copied(), recorder)
    except StepEndedError:
        if trial.failure is None:
            return replace(trial, state=None)  # a forward may have counted
        return trial if sides.records else _with_calls(sides, trial, expected, part)
    except Exception:
        shapes, wanted = _shapes(recorder.step), _shapes(expected.step)
        if recorder.is_complete or sides.group.size > 1 or not shapes or shapes == wanted:
            raise
        trial, _ = _computed(sides, trial, expected, recorder.step, part)  # the loss refuses these outputs
        if trial.failure is None:
            raise
        return trial
    if before is None:
        raise RuntimeError(
            "the layout's step has not called backward_ended of its observer (loss_ended, where nothing "
            "is trained), so nothing of it can be compared: docs/custom-layouts.md has a step that does"
        )
    if layout.optimizers is None:
        return trial
    try:
        with kept_globals():
            return judged_update(sides, trial, before)
    except HiddenStateError as error:
        raise SingleDeviceError(error) from error


def take_evaluation(sides: Sides, trial: Trial, batch: Batch) -> Trial:
    """Outputs in eval mode, where they draw no random numbers; every rank computes all rows."""
    trial, state = checked_state(sides, replace(trial, rows=(*trial.rows, batch.rows)))
    if trial.failure is not None:
        return trial
    expected = sides.single.evaluate(state, batch, sides.mode.on_all_rows, hooks=sides.records)
    trial = replace(trial, state=None)  # a forward in eval mode may write to buffers, and to rows of a table
    if expected.drew:
        return trial
    recorder = Recorder(sides.layout, True, lambda: None)
    with recorder.hooks() if sides.records else nullcontext():
        outputs = sides.layout.evaluate(batch.copied())
    recorder.forward_ended(outputs)
    scalars = [name for name, output in expected.outputs.items() if not output.dim()]
    found, expected = _without(recorder.step, scalars), _without(expected, scalars)  # replicas have one each
    if sides.group.dp_rank:
        found = replace(found, calls={})  # those of the first ranks are of all rows
    verdict = judged_outputs(sides, trial.steps, found, expected, state, batch)
    trial = trial.judged(verdict)
    if verdict.failed is None:
        return trial
    limits, mode = verdict.limits, sides.mode
    failure = Failure(verdict.failed, batch, found, expected, "", limits, mode, state, in_eval_mode=True)
    return replace(trial, failure=failure)


def _begin(sides: Sides, trial: Trial, batch: Batch) -> tuple[Trial, Expected | None]:
    """What is expected of the layout's step on the batch; nothing if its state is wrong."""
    trial, state = checked_state(sides, trial)
    if trial.failure is not None:
        return trial, None
    window = trial.window.followed_by(state, batch, trial.gradients)
    threads = torch.get_num_threads()
    try:
        step = sides.single.step(window.state, batch, sides.mode, hooks=sides.records)
        if sides.records and step.loss is not None and not math.isfinite(step.loss):
            advice = ": try a smaller learning rate" if trial.steps > 1 else ""
            raise NonfiniteError(f"the loss of a single device is {step.loss} in step {trial.steps}{advice}")
    except Exception as error:  # of any kind: it is the user's model
        raise SingleDeviceError(error) from error
    if step.drew and sides.is_split and sides.mode.chunks is None:
        raise SingleDeviceError(RuntimeError("it draws random numbers, and each shard draws its own"))
    if step.stores and sides.is_split and sides.mode.chunks is not None:
        raise SingleDeviceError(RuntimeError("its loss reads what the forward of one shard has stored"))
    by_shards = trial.by_shards | (step.wrote.keys() if sides.is_split else set())
    trial = replace(trial, by_shards=by_shards, window=window, gradients=step.gradients)
    return trial, Expected(window, step, threads)


def _computed(
    sides: Sides, trial: Trial, expected: Expected, step: Step, part: Batch
) -> tuple[Trial, BeforeUpdate]:
    """Judge what the layout has computed of its part of the batch, before its optimizer."""
    trial, random, window = _with_seeds(sides, trial, expected.step), random_state(), expected.window
    with kept_globals(), intra_op_threads(expected.threads):
        found, wanted, notes = _combined(sides, step, expected.step, part, trial.steps)
        buffers = sides.full.buffers()
        of_part = buffers if part.rows else None
        verdict, by_shards = judged_step(sides, trial.steps, found, wanted, window, of_part)
        trial = trial.noted(*notes).judged(verdict)
        trial = replace(trial, by_shards=trial.by_shards | by_shards)
        wrote = _written(sides, wanted) if verdict.failed is None else {}
        if wrote:
            compared = {name: wanted.wrote[name] for name in wrote if name not in trial.by_shards}
            kinds = {"parameters": parts_of({name: wrote[name] for name in compared}, compared)}
            verdict = judge(trial.steps, [(kinds, {})], sides.limits, sides.group)
            trial = trial.judged(verdict)
        own_buffers = {name: each.clone() for name, each in sides.layout.buffers().items()}
    state = replace(window.state, parameters={**window.state.parameters, **wrote})
    if verdict.failed is not None:
        batch, limits = window.batch, verdict.limits
        failure = Failure(verdict.failed, batch, found, wanted, "", limits, sides.mode, window.state)
        trial = replace(trial, failure=failure)
    elif sides.clips:
        _clip(sides, found.gradients, trial.steps)
    return trial, BeforeUpdate(state, found, wanted, own_buffers, random)


def _combined(
    sides: Sides, found: Step, expected: Step, part: Batch, number: int
) -> tuple[Step, Step, list[str]]:
    """The layout's step with the outputs, gradients and loss of all ranks, and what is expected of it.

    Both without scalars of shards that are not compared, about which are the notes.
    """
    group, objective = sides.group, expected.objective
    vectors = [name for name, tensor in found.outputs.items() if tensor.dim()]
    of_shards = vectors if group.dp_size == 1 else [*expected.outputs]
    found = replace(found, outputs=gathered_outputs(found, expected, part, objective, group))
    apart = scalars_apart(found, expected, of_shards, sides.limits, number)
    found = replace(found, gradients=sides.full.completed(found.gradients))
    if found.loss is not None:
        by_dp_rank = group.one_of_each_dp_rank(group.all_gather([found.loss, part.weight]))
        found = replace(found, loss=math.fsum(loss * weight for loss, weight in by_dp_rank if weight))
    return _without(found, apart), _without(expected, apart), [*filter(None, apart.values())]


def _with_seeds(sides: Sides, trial: Trial, expected: Step) -> Trial:
    """With a note about ranks that draw the same random numbers."""
    if not expected.drew or sides.group.dp_size == 1:
        return trial
    states = sides.group.all_gather(torch.get_rng_state().numpy().tobytes())
    is_alike = len(set(sides.group.one_of_each_dp_rank(states))) == 1
    return trial.noted(SEEDED_ALIKE) if is_alike else trial


def _written(sides: Sides, expected: Step) -> Tensors:
    """The layout's parameters that the forward has changed, from which the optimizer goes on."""
    now = sides.full.parameters() if expected.wrote else {}
    return {name: now[name] for name in expected.wrote if name in now}


def _clip(sides: Sides, gradients: Tensors, number: int) -> None:
    """Where the run clips, clip by twice the norm of the gradients in one update, by half in the next."""
    optimizers = sides.layout.optimizers
    if optimizers is not None and optimizers.clip_norm is not None:
        norm = math.hypot(*map(magnitude, gradients.values()))
        update = number // optimizers.accumulate
        optimizers.clip_norm = CLIPS[update % len(CLIPS)] * norm / optimizers.accumulate


def _with_calls(sides: Sides, trial: Trial, expected: Expected, part: Batch) -> Trial:
    """Take the step again with hooks, which it has not had, and add what they record to the failure."""
    failure, state = trial.failure, expected.window.state
    if failure is None or failure.worst.kind == "buffers":
        return trial
    sides.layout.clear()
    with suppress(Exception):  # of any kind: what has failed is known
        again = sides.single.step(state, expected.window.batch, sides.mode, hooks=True)
        recorder = Recorder(sides.layout, bool(part.rows), end_step, with_loss=True)
        with kept_globals(), recorder.hooks(order=True), suppress(StepEndedError):
            set_random_state(state.random[sides.group.dp_rank])
            sides.layout.step(part.copied(), recorder)
        found = replace(failure.found, calls=recorder.step.calls)
        of_single = replace(failure.expected, calls=again.calls, modules=again.modules, order=again.order)
        return replace(trial, failure=replace(failure, found=found, expected=of_single))
    return trial


def _shapes(step: Step) -> list[torch.Size]:
    return [tensor.shape for tensor in step.outputs.values()]


def _without(step: Step, outputs: Collection[str]) -> Step:
    """The step without these outputs."""
    return replace(step, outputs={n: each for n, each in step.outputs.items() if n not in outputs})
