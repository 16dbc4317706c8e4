"""Checks: what of a layout's state, or of a window of batches, is wrong before a step is compared.

Each check adds what it finds to a trial. Every rank must call it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import torch

from dpexp.config.words import plural
from dpexp.data.batch import Batch
from dpexp.data.halves import LIMIT
from dpexp.training.preserve import is_users
from dpexp.verification.compare import Difference, Tensors, parts_of, relative_error
from dpexp.verification.failure import Failure
from dpexp.verification.judge import judge
from dpexp.verification.references import of_rank
from dpexp.verification.rounding import MARGIN
from dpexp.verification.sides import Sides
from dpexp.verification.state import State
from dpexp.verification.trial import NOT_COMPARABLE, OF_OPTIMIZER, Trial

_ONE_OF = {"parameters": "parameter", "buffers": "buffer", "optimizer": "what the optimizer keeps of"}
UNSTEADY = (
    f"{NOT_COMPARABLE}: a single device computes a step otherwise after another step. The model keeps "
    "something from one forward to the next that is no buffer (register_buffer makes a tensor one), or draws "
    "random numbers from a generator of its own (those of torch, Python and NumPy are set for each step)"
)
"""The note about a model whose steps depend on more than a state has."""


def checked_placed(sides: Sides, trial: Trial) -> Trial:
    """Whether the model, as placed, has the numbers of the single device, which has taken no step."""
    placed, follows = sides.state(), sides.single.follows
    single = State.of(sides.single.trainer, sides.objective).following(follows)
    found, buffers = sides.full.buffers(), single.buffers[0]
    names = found.keys() & buffers.keys()
    trial, failed = _judged(
        sides,
        trial,
        {
            "parameters": (placed.parameters, single.parameters),
            "buffers": ({n: found[n] for n in names}, {n: buffers[n] for n in names}),
            "optimizer": (placed.optimizer_numbers(), single.optimizer_numbers()),
        },
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
        trial, failed = _judged(sides, trial, {"parameters": ({name: own}, {name: expected})})
        if failed is not None:
            text = f"parameter '{name}' is not the same on all ranks that have it"
            text += f" (apart by {failed.error:.1e}): the ranks have trained apart"
            return replace(trial, failure=Failure(failed, text=text)), state
    if not any(group.all_gather(trial.state is not None)):
        return trial, state
    left, now = (_kept(each, sides) for each in (trial.state or state, state))
    trial, failed = _judged(sides, trial, {kind: (now[kind], left[kind]) for kind in left})
    if failed is not None:
        text = f"{_ONE_OF[failed.kind]} '{failed.tensor}' is not as the step before has left it (apart by "
        text += f"{failed.error:.1e}): a thread, a hook or a collective that nothing waits for wrote to it"
        trial = replace(trial, failure=Failure(failed, text=text))
    return trial, state


def _judged(
    sides: Sides, trial: Trial, pairs: Mapping[str, tuple[Tensors, Tensors]]
) -> tuple[Trial, Difference | None]:
    kinds = {kind: parts_of(found, expected) for kind, (found, expected) in pairs.items()}
    verdict = judge(trial.steps, [(kinds, {})], sides.limits, sides.group)
    return trial.judged(verdict), verdict.failed


def _kept(state: State, sides: Sides) -> dict[str, Tensors]:
    """What nothing but a step changes."""
    return {
        "parameters": state.parameters,
        "buffers": of_rank(state.buffers, sides.group),
        "optimizer": state.optimizer_numbers(),
    }


def checked_window(sides: Sides, trial: Trial) -> Trial:
    """Whether a window of several batches, after its last, is one batch of all its rows.

    Only where no row depends on those beside it. Windows that cannot be joined are not looked at.
    """
    optimizers, window = sides.layout.optimizers, trial.window
    if optimizers is None or optimizers.batches or len(window) < 2:
        return trial
    try:
        error = window.apart_from_one_batch(sides.single, sides.mode)
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
    """How far the outputs of a step are from those of the same step after another one.

    A number that a module counts is no cause of it.
    """
    single, mode, batch = sides.single, failure.mode, failure.batch
    modules = [part for part in single.trainer.placed.module.modules() if is_users(part)]
    counted = [{k: v for k, v in vars(part).items() if type(v) in (int, float)} for part in modules]

    def outputs(batch: Batch) -> Tensors:
        compute = single.evaluate if failure.in_eval_mode else single.step
        made = compute(state, batch, mode.on_all_rows if failure.in_eval_mode else mode)
        for part, before in zip(modules, counted, strict=True):
            vars(part).update(before)
        return made.outputs

    before, _ = outputs(batch), outputs(batch.chosen([0] * batch.rows))
    return relative_error(outputs(batch), before)
