"""Take: a step of a layout, and the same step of a single device from the layout's own state.

    _begin      state      that of the layout, gathered from all ranks
                expected   single.step(state, batch)
    _computed   found      outputs, loss, gradients and buffers of the layout, before its optimizer
                update     parameters and optimizer beside single.update(state, the layout's gradients)

    over a limit: the single device again, its last bits moved, before it is called wrong     references

A take is a function: from what is known, a trial, to another trial. The layout computes as it does without
it, and every step is judged by itself: no error grows from step to step. Gradients that accumulate are judged
after the last batch of a window.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from contextlib import nullcontext, suppress
from dataclasses import replace

import torch

from dpexp import devices
from dpexp.data.batch import Batch
from dpexp.data.rng import kept_globals, random_state, set_random_state
from dpexp.parallel.parallel_apply import intra_op_threads
from dpexp.strategies.placed import StepEndedError
from dpexp.training.optimizer_state import HiddenStateError
from dpexp.verification.checks import checked_state
from dpexp.verification.compare import Tensors, magnitude, parts_of
from dpexp.verification.gathered_outputs import gathered_outputs, scalars_apart
from dpexp.verification.recorder import Recorder, Step, end_step
from dpexp.verification.references import BeforeUpdate, judged_outputs, judged_step, judged_update
from dpexp.verification.sides import Sides
from dpexp.verification.state import State
from dpexp.verification.trial import Failure, NonfiniteError, SingleDeviceError, Trial, Window, judge

CLIPS = (0.5, 2.0)
"""Multiples of the norm of the gradients to clip by: with one of them they are scaled, with the other not."""
SEEDED_ALIKE = (
    "the ranks draw the same random numbers, so that each drops the same of its rows: "
    "seed each rank differently"
)
"""The note about ranks whose generators have the same state after a step in which they drew."""


def take_step(sides: Sides, trial: Trial, batch: Batch, part: Batch, *, updates: bool = True) -> Trial:
    """The layout's step on its part of a global batch, as a take; ``updates``: with its optimizer's.

    Every rank must call this. Raises SingleDeviceError, what the layout raises, and RuntimeError for a step
    that does not report to its observer.
    """
    layout, threads = sides.layout, torch.get_num_threads()  # their number can change bits
    trial, expected = _begin(sides, replace(trial, rows=(*trial.rows, batch.rows)), batch)
    if expected is None:
        return trial
    before: BeforeUpdate | None = None

    def compare() -> None:
        nonlocal trial, before
        with intra_op_threads(threads):
            trial, before = _computed(sides, trial, expected, recorder.step, part)
        if trial.failure is not None or not updates:
            raise StepEndedError

    recorder = Recorder(layout, bool(part.rows), compare, with_loss=True)
    try:
        with recorder.hooks() if sides.are_copies else nullcontext():
            layout.step(part.copied(), recorder)
    except StepEndedError:
        if trial.failure is None:
            return replace(trial, state=None)  # a forward may have counted
        return trial if sides.are_copies else _with_calls(sides, trial, trial.failure, part)
    except Exception:
        shapes, wanted = _shapes(recorder.step), _shapes(expected)
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
    expected = sides.single.evaluate(state, batch, sides.mode.on_all_rows, hooks=True)
    trial = replace(trial, state=None)  # a forward in eval mode may write to buffers, and to rows of a table
    if expected.drew:
        return trial
    recorder = Recorder(sides.layout, True, lambda: None)
    with recorder.hooks():
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


def _begin(sides: Sides, trial: Trial, batch: Batch) -> tuple[Trial, Step | None]:
    """What is expected of the layout's step on the batch; nothing if its state is wrong."""
    trial, state = checked_state(sides, trial)
    if trial.failure is not None:
        return trial, None
    window = _followed(trial.window, state, batch, trial.gradients)
    try:
        step = sides.single.step(window[-1][0], batch, sides.mode, hooks=sides.are_copies)
        if sides.are_copies and step.loss is not None and not math.isfinite(step.loss):
            advice = ": try a smaller learning rate" if trial.steps > 1 else ""
            raise NonfiniteError(f"the loss of a single device is {step.loss} in step {trial.steps}{advice}")
    except Exception as error:  # of any kind: it is the user's model
        raise SingleDeviceError(error) from error
    if step.drew and sides.is_split and sides.mode.chunks is None:
        raise SingleDeviceError(RuntimeError("it draws random numbers, and each shard draws its own"))
    if step.stores and sides.is_split and sides.mode.chunks is not None:
        raise SingleDeviceError(RuntimeError("its loss reads what the forward of one shard has stored"))
    by_shards = trial.by_shards | (step.wrote.keys() if sides.is_split else set())
    return replace(trial, by_shards=by_shards, window=window, gradients=step.gradients), step


def _followed(window: Window, state: State, batch: Batch, gradients: Tensors) -> Window:
    """With one batch more; ``gradients`` are a single device's so far.

    What no update changes between batches is in memory once.
    """
    if not state.batches or not window:
        return (*(window if state.batches else ()), (state, batch))
    first = window[0][0]
    same = {n: each for n, each in first.parameters.items() if torch.equal(each, state.parameters[n])}
    parameters = {**state.parameters, **same}
    state = replace(state, parameters=parameters, optimizer=first.optimizer, gradients=gradients)
    return (*((replace(each, gradients={}), earlier) for each, earlier in window), (state, batch))


def _computed(
    sides: Sides, trial: Trial, expected: Step, step: Step, part: Batch
) -> tuple[Trial, BeforeUpdate]:
    """Judge what the layout has computed of its part of the batch, before its optimizer."""
    trial, random, (state, batch) = _with_seeds(sides, trial, expected), random_state(), trial.window[-1]
    with kept_globals():
        found, expected, notes = _combined(sides, step, expected, part, trial.steps)
        buffers = sides.completed(sides.layout.buffers())
        verdict, by_shards = judged_step(sides, trial, found, expected, buffers if part.rows else None)
        trial = trial.noted(*notes).judged(verdict)
        trial = replace(trial, by_shards=trial.by_shards | by_shards)
        wrote = _written(sides, expected) if verdict.failed is None else {}
        if wrote:
            compared = {name: expected.wrote[name] for name in wrote if name not in trial.by_shards}
            kinds = {"parameters": parts_of({name: wrote[name] for name in compared}, compared)}
            verdict = judge(trial.steps, [(kinds, {})], sides.limits, sides.group)
            trial = trial.judged(verdict)
        own_buffers = {name: each.clone() for name, each in sides.layout.buffers().items()}
    if verdict.failed is not None:
        failure = Failure(verdict.failed, batch, found, expected, "", verdict.limits, sides.mode, state)
        trial = replace(trial, failure=failure)
    elif sides.are_copies:
        _clip(sides, found.gradients, trial.steps)
    state = replace(state, parameters={**state.parameters, **wrote})
    return trial, BeforeUpdate(state, found, expected, own_buffers, random)


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
    found = replace(found, gradients=sides.completed(found.gradients))
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
    """The layout's parameters that the forward has changed: the optimizer resumes from these."""
    if not expected.wrote:
        return {}
    full = sides.layout.full_parameters()
    now = sides.completed({name: each.to(devices.HOST, copy=True) for name, each in full.items()})
    return {name: now[name] for name in expected.wrote if name in now}


def _clip(sides: Sides, gradients: Tensors, number: int) -> None:
    """Where the run clips, clip by twice the norm of the gradients in one update, by half in the next."""
    optimizers = sides.layout.optimizers
    if optimizers is not None and optimizers.clip_norm is not None:
        norm = math.hypot(*map(magnitude, gradients.values()))
        update = number // optimizers.accumulate
        optimizers.clip_norm = CLIPS[update % len(CLIPS)] * norm / optimizers.accumulate


def _with_calls(sides: Sides, trial: Trial, failure: Failure, part: Batch) -> Trial:
    """Take the step again with hooks, which it has not had, and add what they record to the failure."""
    state, batch = trial.window[-1]
    if failure.worst.kind == "buffers":
        return trial
    sides.layout.clear()
    with suppress(Exception):  # of any kind: what has failed is known
        again = sides.single.step(state, batch, sides.mode, hooks=True)
        recorder = Recorder(sides.layout, bool(part.rows), end_step, with_loss=True)
        with kept_globals(), recorder.hooks(order=True), suppress(StepEndedError):
            set_random_state(state.random[sides.group.dp_rank])
            sides.layout.step(part.copied(), recorder)
        found = replace(failure.found, calls=recorder.step.calls)
        expected = replace(failure.expected, calls=again.calls, modules=again.modules, order=again.order)
        return replace(trial, failure=replace(failure, found=found, expected=expected))
    return trial


def _shapes(step: Step) -> list[torch.Size]:
    return [tensor.shape for tensor in step.outputs.values()]


def _without(step: Step, outputs: Collection[str]) -> Step:
    return replace(step, outputs={n: each for n, each in step.outputs.items() if n not in outputs})
