"""References: a step and an update beside a single device's, in the ways in which rounding may change it.

    as replayed          the step that is expected
    from own buffers     where only buffers differ: each rank's chunk begins with its own, not the first's
    rounded otherwise    on the layout's accelerator, in the layout's type if that is shorter
    in float64           where the run computes in a shorter type

A step is wrong if it differs from each of them by more than they differ among themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from torch import nn

from dpexp import devices
from dpexp.data.batch import Batch
from dpexp.data.rng import set_random_state
from dpexp.distributed.group import ProcessGroup
from dpexp.strategies.modules import parts as parts_of_model
from dpexp.verification.chunks import STATISTICS
from dpexp.verification.compare import (
    Kinds,
    Noise,
    Parts,
    Tensors,
    noise_of,
    numbers,
    parts_of,
    relative_error,
)
from dpexp.verification.mode import ALL_ROWS
from dpexp.verification.recorder import Computed, Step
from dpexp.verification.rounding import DRAWS, DRAWS_OF_SHORT, comparisons, largest, mixed_precision
from dpexp.verification.sides import Sides
from dpexp.verification.single_device import SingleDevice, Update
from dpexp.verification.state import State
from dpexp.verification.trial import Failure, Trial, Verdict, judge

ROUNDED = 2
"""Last bits by which a number of a parameter may differ after each addition to it: one of the product that
is added, one of the sum. Without them a right table was off by 1.04e-12 after nine steps."""

Compute: TypeAlias = Callable[[SingleDevice, int | None], Computed]
"""What a single device computes again, rounded otherwise by a draw."""


def judged_step(
    sides: Sides, trial: Trial, found: Step, expected: Step, buffers: Tensors | None
) -> tuple[Verdict, frozenset[str]]:
    """What differs of a step before its optimizer, and the buffers to which each shard writes its own.

    Gradients are compared after the last batch of the window; without ``buffers`` none of these are.
    """
    optimizers, in_chunks, window = sides.layout.optimizers, sides.mode.chunks is not None, trial.window
    if optimizers is not None and len(window) < optimizers.accumulate:
        found, expected = replace(found, gradients={}), replace(expected, gradients={})
    by_shards = frozenset[str]()
    if buffers is not None and not in_chunks:
        wanted, before = of_rank(expected.buffers, sides.group), window[-1][0].buffers[0]
        by_shards = _by_shards(sides, wanted, buffers, before)

    def compared(step: Step, of_chunks: Sequence[Tensors]) -> Computed:
        own = of_rank(of_chunks, sides.group) if buffers is not None else {}
        own = {name: each for name, each in own.items() if _is_compared(sides, name, by_shards)}
        return _like(expected, step, own)

    def replay(single: SingleDevice, draw: int | None = None, *, from_own: bool) -> Step:
        step = Step()
        for state, batch in window:
            before = replace(state, gradients=step.gradients)
            step = single.step(before, batch, sides.mode, draw, from_own=from_own)
        return step

    def replayed(from_own: bool, single: SingleDevice, draw: int | None) -> Computed:
        step = replay(single, draw, from_own=from_own)
        return compared(step, step.buffers)

    for from_own in (False, True) if in_chunks and len(window[-1][0].buffers) > 1 else (False,):
        after = replay(sides.single, from_own=True) if from_own else expected
        wanted_of_step, compute = compared(expected, after.buffers), partial(replayed, from_own)
        verdict = _judged(sides, trial.steps, Computed(found, buffers or {}), wanted_of_step, compute)
        if verdict.failed is None or verdict.failed.kind != "buffers":
            break
    return verdict, by_shards


def judged_outputs(
    sides: Sides, number: int, found: Step, expected: Step, state: State, batch: Batch
) -> Verdict:
    """What differs of the outputs in eval mode."""

    def compute(single: SingleDevice, draw: int | None) -> Computed:
        return _like(expected, single.evaluate(state, batch, sides.mode.on_all_rows, draw), {})

    return _judged(sides, number, Computed(found, {}), Computed(expected, {}), compute)


def _judged(sides: Sides, number: int, found: Computed, expected: Computed, compute: Compute) -> Verdict:
    short, drew = _shorter(sides, found.step, expected.step), expected.step.drew

    def replay(draw: int | None) -> Computed:
        return compute(_otherwise(sides, draw, drew, short), draw)

    def in_float64() -> Computed | None:
        """None where the model does not compute in it, or draws other random numbers."""
        if short and not sides.is_short:
            return expected
        if not sides.is_short or drew:
            return None
        try:
            exact = compute(sides.single.again(torch.float64), None)
        except (RuntimeError, NotImplementedError, TypeError):  # of operators that have no float64
            exact = None
        return exact if all(sides.group.all_gather(exact is not None)) else None

    draws = DRAWS_OF_SHORT if short or sides.is_short else DRAWS
    each = comparisons(found, expected, replay, in_float64, sides.limits, draws)
    return judge(number, each, sides.limits, sides.group)


def _otherwise(sides: Sides, draw: int | None, drew: bool, dtype: torch.dtype | None = None) -> SingleDevice:
    """The single device that rounds otherwise: on the layout's accelerator, which has kernels of its own.

    On the host if it draws random numbers, of which an accelerator has others.
    """
    physical = [devices.physical(each) for each in sides.layout.placed.devices]
    others = [] if draw is None or drew else [each for each in physical if each != devices.HOST]
    return sides.single.again(dtype, next(iter(others), devices.HOST))


def _shorter(sides: Sides, found: Step, expected: Step) -> torch.dtype | None:
    """The type of the layout's outputs, or of its mixed precision, where it is shorter than usual."""
    own = [each for name, each in found.eps.items() if name is not None]
    own += [torch.finfo(each).eps for each in mixed_precision(sides.layout.placed.module)]
    of_single = max((each for name, each in expected.eps.items() if name is not None), default=0.0)
    eps = max(sides.group.all_gather(max(own, default=0.0)))
    kinds = (torch.bfloat16, torch.float16, torch.float32)
    return next((kind for kind in kinds if torch.finfo(kind).eps == eps > of_single), None)


def _is_compared(sides: Sides, name: str, by_shards: frozenset[str]) -> bool:
    """Whether a buffer is: in chunks all that are known, else what no shard writes from its rows."""
    if sides.mode.chunks is not None:
        return sides.chunks.is_known or name.rpartition(".")[2] in STATISTICS
    return name not in by_shards


def _by_shards(sides: Sides, wanted: Tensors, found: Tensors, before: Tensors) -> frozenset[str]:
    """The buffers that shards write from their rows, and otherwise than a single device does."""
    shards = {
        f"{part.name}.{key}".lstrip(".")
        for part in parts_of_model(sides.layout.placed.module)
        if sides.chunks.split_within(part.name)
        or (sides.group.dp_size > 1 and not isinstance(part.module, nn.SyncBatchNorm))
        for key in part.module._buffers
    }
    tolerance = sides.limits.tolerance
    return frozenset(
        name
        for name in shards & wanted.keys()
        if not _is_same(wanted[name], before.get(name))
        and not (sides.mode.note == ALL_ROWS and name.rpartition(".")[2] in STATISTICS)
        and (name not in found or relative_error({name: found[name]}, {name: wanted[name]}) > tolerance)
    )


def _is_same(tensor: torch.Tensor | None, before: torch.Tensor | None) -> bool:
    """Whether the single device did not write to a buffer."""
    return tensor is before or (tensor is not None and before is not None and torch.equal(before, tensor))


def of_rank(buffers: Sequence[Tensors], group: ProcessGroup) -> Tensors:
    """Those after the chunk of this rank, or after all rows."""
    return buffers[min(group.dp_rank, len(buffers) - 1)]


def _like(expected: Step, step: Step, buffers: Tensors) -> Computed:
    """What of a step is compared: the outputs that are expected, gradients if any are, and these buffers."""
    outputs = {name: step.outputs[name] for name in expected.outputs if name in step.outputs}
    gradients = step.gradients if expected.gradients else {}
    return Computed(replace(step, outputs=outputs, gradients=gradients), buffers)


# --- an update ---


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

    def beside_references() -> Iterator[tuple[Kinds, Noise]]:
        found = _apart(left, after, before) | {"buffers": _buffers(sides.layout.buffers(), before, after)}
        yield found, {}
        for draw in range(DRAWS):
            again = update(_otherwise(sides, draw, before.expected.drew), draw)
            narrowest.append(again.narrowest)
            yield found, largest([noise_of(_apart(again.state, after, before))])

    verdict = judge(trial.steps, beside_references(), sides.limits, sides.group)
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
        trial.window[-1][1],
        before.found,
        before.expected,
        before=before.state.parameters,
        after=after.state.parameters,
        type_of_update=trial.type_of_update,
    )
    return replace(trial, failure=failure)


def _apart(found: State, after: Update, before: BeforeUpdate) -> dict[str, Mapping[str, Parts]]:
    return {
        "parameters": parts_of(found.parameters, after.state.parameters),
        "updates": _updates(found.parameters, after, before),
        "optimizer": parts_of(found.optimizer_numbers(), after.state.optimizer_numbers()),
    }


def _buffers(now: Tensors, before: BeforeUpdate, after: Update) -> Mapping[str, Parts]:
    """The buffers that the single device's optimizer does not write, beside those before it."""
    of_single = after.state.buffers[0]
    written = {n for n, each in before.state.buffers[0].items() if not _is_same(of_single.get(n), each)}
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
