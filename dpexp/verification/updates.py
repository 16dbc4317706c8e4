"""Updates: what a layout's optimizer has made, beside what a single device's makes of the same gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from dpexp.data.rng import set_random_state
from dpexp.verification.compare import Kinds, Noise, Parts, Tensors, noise_of, numbers, parts_of
from dpexp.verification.failure import Failure
from dpexp.verification.judge import judge
from dpexp.verification.recorder import Step
from dpexp.verification.references import is_same, otherwise
from dpexp.verification.rounding import DRAWS, largest
from dpexp.verification.sides import Sides
from dpexp.verification.single_device import SingleDevice, Update
from dpexp.verification.state import State
from dpexp.verification.trial import Trial

ROUNDED = 2
"""Last bits by which a number of a parameter may differ after each addition to it: one of the product that
is added, one of the sum. Without them a right table was off by 1.04e-12 after nine steps."""


@dataclass(frozen=True)
class BeforeUpdate:
    """What the layout's optimizer begins from, once its step is ``found`` to be the ``expected`` one.

    ``state`` is that before the batch, with what the forward wrote. ``buffers`` are those of this rank, and
    ``random`` is the state of its generators.
    """

    state: State
    found: Step
    expected: Step
    buffers: Tensors
    random: bytes


def judged_update(sides: Sides, trial: Trial, before: BeforeUpdate) -> Trial:
    """With what the layout's optimizer makes of its gradients beside the single device's work on the same.

    Raises HiddenStateError.
    """
    optimizers, is_on_host = sides.layout.optimizers, sides.layout.placed.is_on_host
    assert optimizers is not None
    narrowest = list[torch.dtype | None]()

    def update(single: SingleDevice, draw: int | None = None) -> Update:
        if is_on_host:
            set_random_state(before.random)
        gradients, clip_norm = before.found.gradients, optimizers.clip_norm
        return single.update(before.state, gradients, before.expected, clip_norm=clip_norm, draw=draw)

    after = update(sides.single)
    left = sides.state(after.state.follows)

    def comparisons() -> Iterator[tuple[Kinds, Noise]]:
        found = _apart(left, after, before) | {"buffers": _buffers(sides.layout.buffers(), before, after)}
        yield found, {}
        for draw in range(DRAWS):
            again = update(otherwise(sides, draw, before.expected.drew), draw)
            narrowest.append(again.narrowest)
            yield found, largest([noise_of(_apart(again.state, after, before))])

    verdict = judge(trial.steps, comparisons(), sides.limits, sides.group)
    trial = replace(
        trial.judged(verdict),
        follows=after.state.follows,
        type_of_update=narrowest[-1] if narrowest else trial.type_of_update,
        state=left,
    )
    if verdict.failed is None:
        return trial
    failure = Failure(
        verdict.failed,
        trial.window.batch,
        before.found,
        before.expected,
        before=before.state.parameters,
        after=after.state.parameters,
        type_of_update=trial.type_of_update,
    )
    return replace(trial, failure=failure)


def _apart(found: State, after: Update, before: BeforeUpdate) -> dict[str, Mapping[str, Parts]]:
    """How far what an optimizer has made is from what the single device's has made."""
    return {
        "parameters": parts_of(found.parameters, after.state.parameters),
        "updates": _updates(found.parameters, after, before),
        "optimizer": parts_of(found.optimizer_numbers(), after.state.optimizer_numbers()),
    }


def _buffers(now: Tensors, before: BeforeUpdate, after: Update) -> Mapping[str, Parts]:
    """The buffers that the single device's optimizer does not write, beside those before it."""
    of_single = after.state.buffers[0]
    written = {n for n, each in before.state.buffers[0].items() if not is_same(of_single.get(n), each)}
    kept = {name: each for name, each in before.buffers.items() if name not in written}
    return parts_of({name: now[name] for name in kept if name in now}, kept)


def _updates(found: Tensors, after: Update, before: BeforeUpdate) -> Mapping[str, Parts]:
    """What a step has changed, without the rounding of the sums: some last bits of each number."""
    updates = {}
    for name, expected in after.state.parameters.items():
        if name not in found or found[name].shape != expected.shape:
            continue
        wanted, start = numbers(expected), numbers(before.state.parameters[name])
        additions = ROUNDED * before.expected.additions.get(name, 1)
        slack = additions * torch.finfo(expected.dtype).eps * np.abs(wanted)
        with np.errstate(over="ignore", invalid="ignore"):
            off = np.maximum(np.abs(numbers(found[name]) - wanted) - slack, 0)
            norms = [float(np.linalg.norm(each)) for each in (wanted - start, off)]
        updates[name] = Parts(norms[:1], [math.inf if math.isnan(norms[1]) else norms[1]])
    return updates
