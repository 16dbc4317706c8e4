"""Step: one optimizer step of the loop beside a single device that takes the same calls.

observed    begin               -> Step        outputs and weights are compared
Step        compare_gradients   -> Compared    before each optimizer's step
            expect_update       -> Stepping    what an equal optimizer makes of these gradients
Stepping    compare_update                     after it
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from dpexp import tensors
from dpexp.config.errors import NotComparableError
from dpexp.copies import hooked_parameters
from dpexp.strategies.modules import named_parameters
from dpexp.verification.alone import collectives
from dpexp.verification.compare import Noise, ratio
from dpexp.verification.diagnosis.patterns import Moments
from dpexp.verification.rounding import mixed_precision
from dpexp.watch import clipping, update
from dpexp.watch.averages import Known
from dpexp.watch.blocks import block_names, parameters_of
from dpexp.watch.calls import Call, Window
from dpexp.watch.counts import ROWS, count
from dpexp.watch.equal import Kind, kind_of
from dpexp.watch.expected import Observed, Step, Tensors, expected, outputs_of
from dpexp.watch.explain import Case, FoundError, explain
from dpexp.watch.gradients import Right, Sides, of_loop
from dpexp.watch.judge import Judge, drawn
from dpexp.watch.memory import Blocks, Memory, chosen, said
from dpexp.watch.ranks import LoopRanks
from dpexp.watch.replay import HAS_STATE, Replay, limits_of, low_of
from dpexp.watch.shards import Shards, own, sampled
from dpexp.watch.weights import (
    STATE_WEIGHT,
    Weighed,
    Weighing,
    loss_of_all_rows,
    rounding_of,
    scalar_place,
    unweighed,
)

CLOSE = 0.05
"""Outputs that are so far apart are those of another call."""


@dataclass(frozen=True)
class Compared:
    """Of the gradients that an optimizer steps with some numbers, which have another value than zero, on
    either side, and whether they were clipped.
    """

    samples: Tensors
    reached: frozenset[str]
    was_clipped: bool


@dataclass(frozen=True)
class Stepping:
    """An optimizer steps now, and must make this ``update``; None where that could not be computed."""

    update: update.Expected | None


def held_by(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, nn.Parameter]:
    """The model's parameters that the optimizer holds, by their names in the model as written."""
    own = {id(each) for group in optimizer.param_groups for each in group["params"]}
    return {name: each for name, each in named_parameters(model).items() if id(each) in own}


def checksums(named: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """By which equal bits are known, of what this rank owns of each, by name."""
    return {name: tensors.checksum(own(each)) for name, each in named.items()}


# --- before the first optimizer of a step ---


def begin(judge: Judge, observed: Observed, known: Mapping[str, Known]) -> Step:
    """Compare the parameters of ranks, the outputs of each call, and what each call counts, of which the step
    before has ``known`` rules.

    Every rank must call this, and what follows. They raise FoundError for what a single device computes
    otherwise, and NotComparableError.
    """
    ranks, replay, parameters = judge.ranks, judge.replay, named_parameters(judge.model)
    window = observed.window.gathered()
    ranks.together(lambda: replay.check(judge.model))
    shards = Shards.of(parameters, ranks)
    _check_alike(judge, shards, parameters, "before")
    replay.load(judge.model, ranks, _blocks(judge, shards, parameters))
    if not any(ranks.all_gather(bool(window.calls))):
        raise NotComparableError(
            "the model was not called, or none of its outputs was differentiated: watch the module that "
            "the loop calls, and let the loss come from its outputs"
        )
    inputs = tensors.walk([call.inputs for call in observed.window.calls])
    counted = _counted(judge, window, any(hasattr(each, "placements") for each in inputs))
    losses, why = None, None
    try:
        losses = _losses(judge, window)
        weighed = _weighed(judge, window, losses, counted, known)
    except (FoundError, NotComparableError) as error:  # of outputs that are wrong: these are said first
        weighed, why = unweighed(window), error
    step = Step(judge.number, window, shards, counted, weighed)
    step = replace(step, expected=expected(step, replay))
    _check_outputs(judge, step)
    _check_finite(ranks, window)
    if why is not None:
        raise why
    rows = ranks.all_gather(sum(int(count(ROWS, call.inputs)) for call in window.calls))
    return replace(
        step,
        loss=loss_of_all_rows(losses or [], weighed.shares, ranks, counted),
        samples=sum(rows[rank] for rank in set(counted)),
    )


def _blocks(judge: Judge, shards: Shards, parameters: Mapping[str, nn.Parameter]) -> Blocks:
    """Those of the replica; none where it is full. On the first step it is said what the watch needs."""
    if judge.number > 1:
        return judge.replay.blocks
    blocks = parameters_of(judge.model, block_names(judge.model))
    own = Memory.of(parameters, low_of(judge.model), blocks, shards)
    memories = judge.ranks.all_gather(own)
    kind = chosen(judge.options.replica, memories, bool(blocks))
    if judge.ranks.is_first:
        print(f"dpexp: {said(kind, memories)}", file=sys.stderr)
    return blocks if kind == "blocks" else {}


def _check_alike(judge: Judge, shards: Shards, parameters: Mapping[str, nn.Parameter], when: str) -> None:
    """Raise FoundError where ranks have other parameters."""
    if judge.ranks.size == 1:
        return
    shared = {name: each for name, each in parameters.items() if shards.is_shared(name)}
    by_rank = judge.ranks.all_gather(checksums(shared))
    found = {
        (name, shards.boxes[rank].get(name), value)
        for rank, of_rank in enumerate(by_rank)
        for name, value in of_rank.items()
    }
    of_box = Counter((name, box) for name, box, _ in found)
    differing = {name for (name, _), count in of_box.items() if count > 1}
    names = [name for name in parameters if name in differing]
    if names:
        cause = (
            "ranks were not seeded alike, rank 0's were not broadcast, or ranks write to them (max_norm)"
            if when == "before"
            else "ranks had other gradients, or an optimizer of another state"
        )
        judge.fail("parameters", f"'{names[0]}' differs between ranks {when} the step", cause)


def _counted(judge: Judge, window: Window, is_global: bool) -> list[int]:
    """For each rank the one that counts for it: those that compute the same rows, as in tensor parallelism,
    count once. ``is_global``: the loop's inputs are DTensors, with the rows of all ranks.
    """
    rows = judge.ranks.all_gather(tensors.digest(tensors.walk([call.inputs for call in window.calls])))
    times = Counter(rows)
    is_even = len(set(times.values())) == 1
    if len(times) < len(rows) and not (is_global or _splits_layers(judge.model)):
        judge.warn("ranks compute equal rows: is the rank of the sampler set?")
    return [rows.index(each) if is_even else rank for rank, each in enumerate(rows)]


def _splits_layers(model: nn.Module) -> bool:
    """Whether a dimension of a mesh beside FSDP's splits layers: its ranks compute the same rows."""
    of_parts: list[Any] = [part for part in model.modules() if hasattr(part, "_get_fsdp_state")]
    states = [part._get_fsdp_state() for part in of_parts]
    groups = [group for state in states if (group := getattr(state, "_fsdp_param_group", None)) is not None]
    of_fsdp = max((group.mesh_info.mesh.ndim for group in groups), default=0)
    meshes = (getattr(each, "device_mesh", None) for each in model.parameters())
    return any(mesh.ndim > of_fsdp for mesh in meshes if mesh is not None)


def _check_outputs(judge: Judge, step: Step) -> None:
    """Raise FoundError, or NotComparableError, for outputs that are not a single device's."""
    ranks, replay, calls = judge.ranks, judge.replay, step.window.calls
    found = step.expected.outputs

    def rounding(draw: int, names: Iterable[str]) -> Noise:
        numbers = sorted({int(name.split()[1]) - 1 for name in names})  # of "call 1 output 0"
        return drawn("outputs", outputs_of(step.window, numbers, ranks, replay, draw))

    failed = judge.compare("outputs", found, rounding, step.expected.limits)
    if failed is None:
        return
    of_call = failed.tensor.partition(" output")[0]
    near = [
        name
        for name, each in found.items()
        if name.partition(" output")[0] != of_call
        and math.hypot(*each.apart) <= 1e-3 * math.hypot(*each.norms)
    ]
    if any(ranks.all_gather(bool(near))):
        raise NotComparableError(
            f"{failed.tensor} differs, and other calls of this step are right: parameters or settings change "
            "between its calls"
        )
    every = range(max(ranks.all_gather(len(calls))))
    with collectives() as seen:
        again = outputs_of(step.window, every, ranks, replay)
    if any(ranks.all_gather(any(any(each.apart) for each in again.values()))):
        raise NotComparableError(HAS_STATE)
    if any(ranks.all_gather(bool(seen))):
        raise NotComparableError(
            "the forward of the model asks for other ranks, as a loss does that gathers their outputs, and a "
            "single device has none: move that to the loss, or watch the part of the model before it"
        )
    alike = ranks.together(lambda: all(map(replay.draws_alike, calls)))
    if not all(ranks.all_gather(alike)):
        raise NotComparableError(
            "the layout draws other random numbers than a single device: watch the loop with dropout off"
        )
    cause = "the layout computes another forward, draws other random numbers, or parameters changed after it"
    judge.fail("outputs", f"{failed.tensor} differs by {failed.error:.1e}", cause, failed)


def _check_finite(ranks: LoopRanks, window: Window) -> None:
    """Raise NotComparableError where what the loop differentiates is not finite, in outputs equal to a single
    device's.
    """

    def first() -> str:
        for number, call in enumerate(window.calls, 1):
            bad = [place for place, each in call.gradients.items() if not bool(each.isfinite().all())]
            if bad:
                outputs = [place for place, each in enumerate(call.leaves) if bool(each.isnan().any())]
                where = f"output {outputs[0]}" if outputs else f"the gradient at output {bad[0]}"
                return f"{where} of call {number} of the model"
        return ""

    by_rank = ranks.all_gather(first())
    for rank, what in enumerate(by_rank):
        if what:
            of_rank = f" of rank {rank}" if ranks.size > 1 else ""
            raise NotComparableError(
                f"{what}{of_rank} is not finite, with a single device as well: look for what makes it so, by "
                "torch.autograd.set_detect_anomaly(True), say"
            )


def _losses(judge: Judge, window: Window) -> Sequence[Call] | None:
    """The calls whose weights are compared: those of losses, else of the model with the loss inside; None
    where no loss is known.
    """
    if any(judge.ranks.all_gather(bool(window.losses))):
        return window.losses
    if judge.options.loss is not None:
        raise NotComparableError(
            "the model's outputs were differentiated, and run.loss was not called: call it in the loop, "
            "or watch without a loss"
        )
    inside = all(scalar_place(call) is not None for call in window.calls)
    return window.calls if all(judge.ranks.all_gather(inside)) else None


def _weighed(
    judge: Judge,
    window: Window,
    losses: Sequence[Call] | None,
    counted: Sequence[int],
    known: Mapping[str, Known],
) -> Weighed:
    options = judge.options
    if options.weight is False or losses is None:
        if losses is None:
            judge.warn("without a loss its weights were not compared: only layout and synchronization")
        return unweighed(window)
    weighing = Weighing(options.weight, judge.ranks, judge.replay, counted, known)
    try:
        with collectives() as asked:
            weighed = weighing.weigh(window, losses)
    except NotComparableError as why:
        if options.loss is not None or losses is window.calls:
            raise
        judge.warn(f"the weights of the loss were not compared: {why}")  # it was not stated
        return unweighed(window)
    if weighed.unknown:
        raise NotComparableError(weighed.unknown)
    if weighed.apart and not any(judge.ranks.all_gather(bool(asked))):
        raise NotComparableError(
            f"the loss of a row depends on other rows (apart {weighed.apart:.1e}), so it is another one with "
            f"all rows: {STATE_WEIGHT}"
        )
    if weighed.apart and not weighed.is_known:
        raise NotComparableError(
            "the loss asks for other ranks, and is another one with all rows on one device: let it ask for "
            "the number of ranks when it is called, or watch without a loss"
        )
    if weighed.apart:
        what = f"its gradient is not a multiple of that of the loss of all rows (apart {weighed.apart:.1e})"
        judge.fail("loss", what, "an all_reduce or all_gather without a backward")
    if weighed.cause and weighed.terms > 1:
        judge.fail("loss", "calls have other weights than in the loss of all rows", weighed.cause)
    return weighed


# --- before an optimizer's step ---


def compare_gradients(
    judge: Judge,
    observed: Observed,
    step: Step,
    optimizer: torch.optim.Optimizer,
    held: Mapping[str, nn.Parameter],
) -> Compared:
    """Compare what an optimizer is about to step with."""
    parameters = named_parameters(judge.model)
    sides = Sides.of(step, held, of_loop(held, getattr(optimizer, "grad_scale", None)))
    _check_finite_sums(judge.ranks, sides)
    if not any(each.found or each.of for each in sides.moments.values()):
        judge.warn("no parameter has a gradient other than zero")
    right = Right.of(step, observed, sides, parameters, judge.options.clip_norm)
    wanted = right.gradients(sides, sides.sums)

    def rounding(draw: int, names: frozenset[str]) -> Noise:
        some = names if right.function is None else frozenset(sides.sums)
        again = right.gradients(sides, expected(step, judge.replay, draw=draw, names=some).sums)
        some = names & again.keys() & wanted.keys()
        both = ({name: each[name] for name in sorted(some)} for each in (again, wanted))
        return drawn("gradients", sides.parts(*both))

    found = sides.parts(sides.found, wanted)
    reduced = [limits_of([each]) for each in mixed_precision(judge.model)]
    limits = max([step.expected.limits, *reduced], key=attrgetter("eps"))
    failed = judge.compare("gradients", found, rounding, limits)
    if failed is None:
        _check_drift(judge, step, sides)
        return Compared(
            {name: sampled(each, held[name]) for name, each in sides.found.items()},
            frozenset(name for name, each in sides.moments.items() if each.found or each.of),
            right.is_active,
        )
    carried: Sequence[Tensors] | None = None
    with suppress(NotComparableError):  # the step of the other optimizer has changed the model
        carried = _columns(observed.carried, step, judge.replay)
    limit = 10 * limits.tolerance
    case = Case(
        observed,
        step,
        sides,
        right.kept(sides),
        carried=carried,
        clip=right.limit,
        wrong=[
            name
            for name, each in found.items()
            if name in wanted and ratio(math.hypot(*each.apart), math.hypot(*each.norms)) > limit
        ],
        misplaced=clipping.misplaced(observed.clips, observed.passes, parameters, observed.written),
        hooked=[name for name in hooked_parameters(judge.model) if name in held],
        is_partial=any(each.requires_grad and name not in held for name, each in parameters.items()),
    )
    judge.fail("gradients", f"of '{failed.tensor}' differ by {failed.error:.1e}", explain(case), failed)


def _columns(window: Window, step: Step, replay: Replay) -> Sequence[Tensors]:
    """What the passes of a window add, as they were; every rank must call this."""
    those = replace(step, window=window, weighed=unweighed(window))
    found = expected(those, replay, names=frozenset())
    far = (math.hypot(*each.apart) > CLOSE * math.hypot(*each.norms) for each in found.outputs.values())
    if any(step.shards.ranks.all_gather(any(far))):
        raise NotComparableError(HAS_STATE)
    return found.columns


def _check_finite_sums(ranks: LoopRanks, sides: Sides) -> None:
    bad = [
        [name for name, each in sides.moments.items() if not math.isfinite(of(each))]
        for of in (attrgetter("of"), attrgetter("found"))
    ]
    for rank, (right, found) in enumerate(ranks.all_gather(bad)):
        if right and found:
            raise NotComparableError(
                f"the gradient of '{right[0]}' is not finite on rank {rank}, with a single device as well"
            )


def _check_drift(judge: Judge, step: Step, sides: Sides) -> None:
    """Unequal weights too small to be told from rounding, but known at the loss.

    Which sum are the gradients nearer to: that with the weights of the loss of all rows, or with the
    loop's own?
    """
    weighed = step.weighed
    factors = weighed.of_losses
    own = rounding_of([*step.window.calls, *step.window.losses])
    least = max(1e-4, max(judge.ranks.all_gather(own)))
    if weighed.terms > 1 or not factors or max(factors) - min(factors) < least * max(map(abs, factors)):
        return
    mean = sum(factors) / len(factors)
    nearest = math.copysign(2.0 ** round(math.log2(abs(mean))), mean) if mean else 1.0  # it rounds nothing
    alike = replace(weighed, factors=[nearest] * len(weighed.factors))
    of_loop = expected(replace(step, weighed=alike), judge.replay)
    others = Sides.of(replace(step, expected=of_loop), sides.held, sides.found)
    near, nearer = (sum(each.moments.values(), Moments()).left for each in (sides, others))
    is_loops = nearer < 0.5 * near
    if all(judge.ranks.all_gather(is_loops)):
        shown = ", ".join(f"{each / mean:.5g}" for each in factors[:8])
        cause = weighed.cause or f"they are {shown} instead of 1"
        judge.fail("loss", "calls have other weights than in the loss of all rows", cause)


def expect_update(
    judge: Judge,
    optimizer: torch.optim.Optimizer,
    step: Step,
    held: Mapping[str, nn.Parameter],
    kind: Kind | None,
) -> Stepping:
    """What an equal optimizer, of this kind if that is known, makes of the gradients of the loop."""
    shards, ranks = step.shards, judge.ranks
    gradients = of_loop(held, None, is_dense=False)
    try:
        kind = kind or kind_of(optimizer, held, ranks)
        return Stepping(update.expected(optimizer, held, gradients, kind, shards, ranks))
    except NotComparableError as why:
        judge.warn(f"the update was not compared: {why}")
        return Stepping(None)


# --- after an optimizer's step ---


def check_synchronized(judge: Judge, held: Mapping[str, nn.Parameter]) -> None:
    """Raise NotComparableError where ranks that had other gradients have the same parameters after it."""
    after = judge.ranks.all_gather(checksums(held))
    if all(each == after[0] for each in after):
        raise NotComparableError(
            "ranks have other gradients before the optimizer's step, and the same parameters after it: the "
            "optimizer synchronizes them itself, which is not compared"
        )


def compare_update(
    judge: Judge,
    optimizer: torch.optim.Optimizer,
    held: Mapping[str, nn.Parameter],
    stepping: Stepping,
) -> None:
    """Compare the parameters after the step with those of an equal optimizer."""
    if (expected := stepping.update) is not None:
        parts, noise = update.compared(expected, held)
        failed = judge.compare("updates", parts, lambda draw, names: noise, expected.kind.limits)
        if failed is not None:
            what = f"of '{failed.tensor}' differs by {failed.error:.1e}"
            cause = f"an equal {type(optimizer).__name__} makes another update of the same gradients"
            judge.fail("update", what, cause, failed)
    cast = judge.ranks.together(lambda: update.narrower_state(optimizer, held))
    if cast := [each for of_rank in judge.ranks.all_gather(cast) for each in of_rank]:
        judge.fail("optimizer", cast[0], "its state was cast, or loaded, in a narrower type")
    names = judge.ranks.all_gather(list(held))
    if any(each != names[0] for each in names):
        judge.warn("the optimizers of ranks hold other parameters: these were not compared between ranks")
    else:
        _check_alike(judge, Shards.of(held, judge.ranks), held, "after")
