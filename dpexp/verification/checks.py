"""Checks: what beside one step is wrong: a state between steps, a window of batches, random numbers.

Every rank must call each.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from dpexp.config.words import plural
from dpexp.data.batch import Batch
from dpexp.data.objective import LIMIT
from dpexp.data.rng import seed_globals
from dpexp.verification.compare import (
    Difference,
    Tensors,
    distance,
    magnitude,
    parts_of,
    ratio,
    relative_error,
)
from dpexp.verification.gathered_outputs import gathered_outputs
from dpexp.verification.recorder import computed
from dpexp.verification.references import of_rank
from dpexp.verification.rounding import MARGIN
from dpexp.verification.sides import Sides
from dpexp.verification.state import State
from dpexp.verification.trial import NOT_COMPARABLE, OF_OPTIMIZER, Failure, Trial, Window, judge

CORRELATED = 0.75
"""Chunks with the same random numbers leave at most half of the rows of alike rows different."""
_ONE_OF = {"parameters": "parameter", "buffers": "buffer", "optimizer": "what the optimizer keeps of"}
UNSTEADY = (
    f"{NOT_COMPARABLE}: a single device computes a step otherwise after another step. The model keeps "
    "something from one forward to the next that is no buffer (register_buffer makes a tensor one), or draws "
    "random numbers from a generator of its own (those of torch, Python and NumPy are set for each step)"
)
"""The note about a model whose steps depend on more than a state has."""


def checked_placed(sides: Sides, trial: Trial) -> Trial:
    """Whether the model, as placed, has the numbers of the single device, which has taken no step."""
    placed = sides.state()
    single = State.of(sides.single.trainer, sides.objective).following(sides.single.follows)
    found, buffers = sides.completed(sides.layout.buffers()), single.buffers[0]
    names = found.keys() & buffers.keys()
    trial, failed = _judged(
        sides,
        trial,
        parameters=(placed.parameters, single.parameters),
        buffers=({name: found[name] for name in names}, {name: buffers[name] for name in names}),
        optimizer=(placed.optimizer_numbers(), single.optimizer_numbers()),
    )
    if failed is None:
        return trial
    what = f"{failed.kind} ({failed.tensor}) differ by {failed.error:.1e}"
    text = f"after step 0: {what}: as placed, they are not the model's"
    return replace(trial, failure=Failure(failed, text=text))


def checked_state(sides: Sides, trial: Trial) -> tuple[Trial, State]:
    """Whether all ranks have the same state, and nothing has changed it since the step before."""
    state, group = sides.state(trial.follows), sides.group
    apart = state.apart(group) if group.size > 1 else {}
    for name, (own, expected) in apart.items():
        trial, failed = _judged(sides, trial, parameters=({name: own}, {name: expected}))
        if failed is not None:
            text = f"parameter '{name}' is not the same on all ranks that have it"
            text += f" (apart by {failed.error:.1e}): the ranks have trained apart"
            return replace(trial, failure=Failure(failed, text=text)), state
    if not any(group.all_gather(trial.state is not None)):
        return trial, state
    pairs = zip(_kept(sides, state), _kept(sides, trial.state or state), strict=True)
    trial, failed = _judged(sides, trial, **dict(zip(_ONE_OF, pairs, strict=True)))
    if failed is not None:
        text = f"{_ONE_OF[failed.kind]} '{failed.tensor}' is not as the step before has left it (apart by "
        text += f"{failed.error:.1e}): a thread, a hook or a collective that nothing waits for wrote to it"
        trial = replace(trial, failure=Failure(failed, text=text))
    return trial, state


def _judged(sides: Sides, trial: Trial, **pairs: tuple[Tensors, Tensors]) -> tuple[Trial, Difference | None]:
    """The trial with the errors of these kinds, of which one has what is found and expected."""
    kinds = {kind: parts_of(found, expected) for kind, (found, expected) in pairs.items()}
    verdict = judge(trial.steps, [(kinds, {})], sides.limits, sides.group)
    return trial.judged(verdict), verdict.failed


def _kept(sides: Sides, state: State) -> tuple[Tensors, Tensors, Tensors]:
    """What nothing but a step changes: parameters, buffers, and what the optimizer keeps."""
    return state.parameters, of_rank(state.buffers, sides.group), state.optimizer_numbers()


def checked_window(sides: Sides, trial: Trial) -> Trial:
    """Whether a window of several batches, after its last, is one batch of all its rows.

    Only where no row depends on those beside it. Windows that cannot be joined are not looked at.
    """
    optimizers, window = sides.layout.optimizers, trial.window
    if optimizers is None or optimizers.batches or len(window) < 2:
        return trial
    try:
        error = _apart_from_one_batch(sides, window)
    except Exception:  # of any kind: the user's model need not take all rows, as of other lengths
        return trial
    limit = max(LIMIT, 1000 * torch.finfo(sides.single.dtype).eps)
    if not max(sides.group.all_gather(error)) > limit:
        return trial
    text = (
        f"after step {trial.steps}: the gradients of {plural(len(window), 'batch')}, averaged, are "
        f"not that of all their rows (off by {error:.1e}): the loss is not a mean over rows. Masked "
        "targets and class weights make each batch divide by another number: compute the rows in one "
        "batch, or divide by a number that is the same for all"
    )
    worst = Difference("gradients", error, step=trial.steps, limit=limit)
    return replace(trial, failure=Failure(worst, text=text))


def _apart_from_one_batch(sides: Sides, window: Window) -> float:
    """How far the mean of the gradients, weighted by rows, is from that of one batch, beside their size.

    It is 0 for a loss that is a mean over rows, or a sum. Raises ValueError where no batch has all rows.
    """
    whole, single, mode = Batch.joined([batch for _, batch in window]), sides.single, sides.mode
    before = window[0][0].without_gradients()  # of all, since a loss may keep something from call to call
    expected = single.step(before, whole, mode).gradients
    found, size = dict[str, torch.Tensor](), 0.0  # which may cancel
    for _, batch in window:
        weight = 1.0 if before.objective.reduction == "sum" else batch.rows / whole.rows
        gradients = single.step(before, batch, mode).gradients
        size += weight * math.hypot(*map(magnitude, gradients.values()))
        for name, each in gradients.items():
            found[name] = found[name] + weight * each if name in found else weight * each
    apart = [distance(found[name], each) if name in found else math.inf for name, each in expected.items()]
    return ratio(math.hypot(*apart), size)


def undecided(sides: Sides, failure: Failure) -> str:
    """Why a failure says nothing about the layout; empty where it does.

    All rows are computed again after a step on others: outputs that change depend on more than the state.
    """
    if not failure.batch.rows or failure.worst.kind in OF_OPTIMIZER:
        return ""
    state, error = sides.state(), 0.0
    with suppress(Exception):  # of any kind: what has failed is known
        error = _apart_from_itself(sides, state, failure)
    return UNSTEADY if max(sides.group.all_gather(error)) > failure.worst.error / MARGIN else ""


def _apart_from_itself(sides: Sides, state: State, failure: Failure) -> float:
    """How far the outputs of a step are from those of the same step after another one."""
    batch, in_eval_mode = failure.batch, failure.in_eval_mode
    compute = sides.single.evaluate if in_eval_mode else sides.single.step
    mode = failure.mode.on_all_rows if in_eval_mode else failure.mode
    before, _, after = (
        compute(state, each, mode).outputs for each in (batch, batch.chosen([0] * batch.rows), batch)
    )
    return relative_error(after, before)


def drawn_alike(sides: Sides, batch: Batch) -> str:
    """That rows of the layout get the same random numbers as others, and do not on a single device.

    Empty where they get others. Not known of ranks that share rows, which are seeded alike here.
    """
    group = sides.group
    if group.size > group.dp_size:
        return ""
    alike = batch.chosen([0] * batch.rows)
    part = sides.part(alike)
    seed_globals(group.dp_rank)
    expected = sides.single.step(sides.state(), alike, sides.mode)
    if 2 * _distinct(expected.outputs) <= batch.rows:
        return ""
    found = computed(sides.layout, part)
    outputs = gathered_outputs(found, expected, part, sides.objective, group)
    if _distinct(outputs) >= CORRELATED * _distinct(expected.outputs):
        return ""
    who = "ranks" if group.size > 1 else "replicas"
    return f"the {who} draw the same random numbers: seed the generator of each differently"


def _distinct(outputs: Tensors) -> int:
    """How many rows of the outputs differ from each other, by more than rounding."""
    rows: list[Any] = [each.flatten(1) for each in outputs.values() if each.dim() > 1 and each.numel()]
    scaled = [tensor / tensor.abs().max().clamp(min=1e-300) for tensor in rows]
    return max((len(torch.unique((each * 1e9).round(), dim=0)) for each in scaled), default=0)
