"""Step: one optimizer step of the loop beside a single device that takes the same calls.

observed    begin               -> Step       outputs and weights are compared
Step        compare_gradients   -> Stepped    before each optimizer's step
Stepped     compare_update                    after it
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from dpexp import tensors
from dpexp.config.errors import NotComparableError
from dpexp.copies import hooked_parameters
from dpexp.strategies.modules import named_parameters
from dpexp.verification.alone import collectives
from dpexp.verification.compare import Limits
from dpexp.verification.diagnosis.patterns import multiple, scalings
from dpexp.watch import clipping, update
from dpexp.watch.calls import Call, Window, full
from dpexp.watch.counts import ROWS, count
from dpexp.watch.expected import Observed, Step, Tensors, by_pass, expected, sampled
from dpexp.watch.explain import Case, explain
from dpexp.watch.judge import Judge
from dpexp.watch.ranks import LoopRanks
from dpexp.watch.replay import HAS_STATE, Narrowest
from dpexp.watch.weights import (
    STATE_WEIGHT,
    Weighed,
    Weighing,
    loss_of_all_rows,
    rounding_of,
    scalar_place,
    unweighed,
)


@dataclass(frozen=True)
class Stepped:
    """What an optimizer steps with: ``gradients`` as it gets them, ``found`` dense."""

    before: update.Before
    gradients: Tensors
    found: Tensors
    was_clipped: bool


def held_by(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, nn.Parameter]:
    """The model's parameters that the optimizer holds, by their names in the model as written."""
    own = {id(each) for group in optimizer.param_groups for each in group["params"]}
    return {name: each for name, each in named_parameters(model).items() if id(each) in own}


def digests(named: Tensors) -> dict[str, str]:
    """The digest of each tensor, by name."""
    return {name: tensors.digest([each]) for name, each in named.items()}


# --- before the first optimizer of a step ---


def begin(judge: Judge, observed: Observed) -> Step:
    """Compare the parameters of ranks, the outputs of each call, and what each call counts.

    Every rank must call this, and what follows. They raise FoundError for what a single device computes
    otherwise, and NotComparableError.
    """
    ranks, replay = judge.ranks, judge.replay
    window = observed.window.gathered()
    parameters = {name: full(each).clone() for name, each in named_parameters(judge.model).items()}
    ranks.together(lambda: replay.load(parameters, judge.model))
    _check_alike(judge, parameters, "before")
    if not any(ranks.all_gather(bool(window.calls))):
        raise NotComparableError(
            "the model was not called, or none of its outputs was differentiated: watch the module that "
            "the loop calls, and let the loss come from its outputs"
        )
    inputs = tensors.walk([call.inputs for call in observed.window.calls])
    is_global = any(hasattr(each, "placements") for each in inputs)
    counted = _counted(judge, window, is_global)
    limits = _check_outputs(judge, window, parameters)
    _check_finite(ranks, window)
    losses = _losses(judge, window)
    weighed = _weighed(judge, window, losses, counted)
    rows = ranks.all_gather(sum(int(count(ROWS, call.inputs)) for call in window.calls))
    step = Step(
        judge.number,
        window,
        parameters,
        counted,
        weighed,
        limits,
        loss_of_all_rows(losses or [], weighed.shares, ranks, counted),
        sum(rows[rank] for rank in set(counted)),
    )
    return replace(step, sums=expected(step, ranks, replay))


def _check_alike(judge: Judge, parameters: Tensors, when: str) -> None:
    """Raise FoundError where ranks have other parameters."""
    if judge.ranks.size == 1:
        return
    shapes = judge.ranks.all_gather({name: tuple(each.shape) for name, each in parameters.items()})
    if any(each != shapes[0] for each in shapes):
        raise NotComparableError(
            "ranks have other models, as the stages of a pipeline: these are not compared"
        )
    by_rank = judge.ranks.all_gather(digests(parameters))
    names = [name for name, bits in by_rank[0].items() if any(each.get(name) != bits for each in by_rank)]
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


def _check_outputs(judge: Judge, window: Window, parameters: Tensors) -> Limits:
    """What counts as rounding in the type of the forward."""
    replay, ranks = judge.replay, judge.ranks

    def outputs(draw: int | None = None) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            return _by_name([replay.outputs(call, draw) for call in window.calls])

    narrowest = Narrowest(parameters.values())
    with narrowest, collectives() as seen:
        right = ranks.together(outputs)
    found = _by_name([call.leaves[: len(call.leaves) - len(call.left)] for call in window.calls])
    failed = judge.compare(
        "outputs", found, _as(right, found), lambda draw: _as(outputs(draw), found), narrowest.limits
    )
    if failed is None:
        return narrowest.limits
    others = {name.partition(" output")[0] for name in found} - {failed.tensor.partition(" output")[0]}
    both = {name: (each, right[name].to(each)) for name, each in found.items() if name in right}
    near = [name for name, (a, b) in both.items() if a.shape == b.shape and torch.allclose(a, b, 1e-3, 1e-5)]
    if any(ranks.all_gather(any(name.partition(" output")[0] in others for name in near))):
        raise NotComparableError(
            f"{failed.tensor} differs, and other calls of this step are right: parameters or settings change "
            "between its calls"
        )
    again = ranks.together(outputs)
    if any(ranks.all_gather(digests(again) != digests(right))):
        raise NotComparableError(HAS_STATE)
    if any(ranks.all_gather(bool(seen))):
        raise NotComparableError(
            "the forward of the model asks for other ranks, as a loss does that gathers their outputs, and a "
            "single device has none: move that to the loss, or watch the part of the model before it"
        )
    alike = ranks.together(lambda: all(map(replay.draws_alike, window.calls)))
    if not all(ranks.all_gather(alike)):
        raise NotComparableError(
            "the layout draws other random numbers than a single device: watch the loop with dropout off"
        )
    cause = "the layout computes another forward, draws other random numbers, or parameters changed after it"
    judge.fail("outputs", f"{failed.tensor} differs by {failed.error:.1e}", cause, failed)
    return narrowest.limits


def _check_finite(ranks: LoopRanks, window: Window) -> None:
    """Raise NotComparableError where what the loop differentiates is not finite, in outputs equal to a single
    device's.
    """

    def first() -> str:
        for number, call in enumerate(window.calls, 1):
            bad = [place for place, each in call.gradients.items() if not _is_finite(each)]
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


def _weighed(judge: Judge, window: Window, losses: Sequence[Call] | None, counted: Sequence[int]) -> Weighed:
    options = judge.options
    if options.weight is False or losses is None:
        if losses is None:
            judge.warn("without a loss its weights were not compared: only layout and synchronization")
        return unweighed(window)
    weighing = Weighing(options.weight, judge.ranks, judge.replay, counted)
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
    is_first: bool,
) -> Stepped:
    """Compare what an optimizer is about to step with. ``is_first``: no other one has stepped before."""
    ranks, weighed = judge.ranks, step.weighed
    scale = getattr(optimizer, "grad_scale", None)  # by which a fused optimizer itself divides
    got = {name: full(each.grad).clone() for name, each in held.items() if each.grad is not None}
    gradients = {name: each if scale is None else each / scale for name, each in got.items()}
    found = {name: each.to_dense() if each.is_sparse else each for name, each in gradients.items()}
    parameters = {name: step.parameters[name] for name in held}
    if not is_first:
        parameters = {name: full(each).clone() for name, each in held.items()}
    before = update.Before.of(optimizer, held, parameters)

    own = named_parameters(judge.model)
    clips = clipping.effective(observed.clips, observed.passes, own, observed.written)
    limits = ranks.all_gather([each.limit for each in clips])
    if len(limits[0]) == len(clips):  # a rank that clips to another limit is wrong
        clips = [replace(each, limit=limit) for each, limit in zip(clips, limits[0], strict=True)]
    times = ranks.all_gather(_times(step, observed, found, held))[0]

    def right(sums: Tensors) -> tuple[dict[str, torch.Tensor], bool]:
        scaled = {name: each * times for name, each in sums.items()} if times != 1 else dict(sums)
        if clips:
            made, is_active = clipping.clipped(clips, observed.passes, scaled, found, own)
        elif judge.options.clip_norm is not None:
            made, is_active = clipping.stated(judge.options.clip_norm, scaled)
        else:
            made, is_active = scaled, False
        some = {name: each for name, each in made.items() if name in held}
        return {name: each for name, each in some.items() if name in found or each.any()}, is_active

    wanted, is_active = right(step.sums)
    _check_finite_sums(ranks, found, wanted)
    if not any(bool(each.any()) for each in (*found.values(), *wanted.values())):
        judge.warn("no parameter has a gradient other than zero")

    def rounded(draw: int) -> dict[str, torch.Tensor]:
        again = expected(step, ranks, judge.replay, draw)
        return {name: each for name, each in right(again)[0].items() if name in wanted}

    failed = judge.compare("gradients", found, wanted, rounded, step.limits)
    if failed is None:
        _check_drift(judge, step, found)
        return Stepped(before, gradients, found, is_active)
    columns = ranks.together(lambda: by_pass(step.window, weighed, judge.replay))
    carried: Sequence[Tensors] | None = None
    with suppress(NotComparableError):  # the step of the other optimizer has changed the model
        carried = ranks.together(lambda: by_pass(observed.carried, unweighed(observed.carried), judge.replay))
    case = Case(
        ranks,
        observed,
        step,
        held,
        found,
        right=wanted,
        columns=columns,
        carried=carried,
        clip=clips[-1].limit if clips else judge.options.clip_norm,
        misplaced=clipping.misplaced(observed.clips, observed.passes, own, observed.written),
        hooked=[name for name in hooked_parameters(judge.model) if name in held],
        is_partial=any(each.requires_grad and name not in held for name, each in own.items()),
    )
    judge.fail("gradients", f"of '{failed.tensor}' differ by {failed.error:.1e}", explain(case), failed)


def _times(step: Step, observed: Observed, found: Tensors, held: Mapping[str, nn.Parameter]) -> float:
    """The scale of the loop's gradients that is taken as right: one for all."""
    weighed = step.weighed
    own = {name: each for name, each in step.sums.items() if name in held}
    before = observed.unclipped
    fitted = multiple(found, own) if before is None else multiple(before, sampled(own))
    if fitted is None or not math.isfinite(fitted.factors[0]) or not fitted.factors[0]:
        return 1.0
    (times,) = fitted.factors
    near = min(weighed.times, key=lambda each: abs(times / each - 1))
    if not weighed.is_free:
        return near
    if weighed.terms > 1 and observed.passes > 1:  # terms have coefficients, and passes are still divided
        errors = scalings(len(set(step.counted)), "rank", observed.passes).values()
        if any(abs(times / (near * each) - 1) < 1e-3 for near in weighed.times for each in errors):
            return near
    return times


def _check_finite_sums(ranks: LoopRanks, found: Tensors, wanted: Tensors) -> None:
    bad = [name for name, each in wanted.items() if not _is_finite(each)]
    by_rank = ranks.all_gather((bad, [name for name, each in found.items() if not _is_finite(each)]))
    for rank, (right, of_loop) in enumerate(by_rank):
        if right and of_loop:
            raise NotComparableError(
                f"the gradient of '{right[0]}' is not finite on rank {rank}, with a single device as well"
            )


def _check_drift(judge: Judge, step: Step, found: Tensors) -> None:
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
    of_loop = expected(replace(step, weighed=alike), judge.ranks, judge.replay)
    near, nearer = multiple(found, step.sums), multiple(found, of_loop)
    is_loops = near is not None and nearer is not None and nearer.left < 0.5 * near.left
    if all(judge.ranks.all_gather(is_loops)):
        shown = ", ".join(f"{each / mean:.5g}" for each in factors[:8])
        cause = weighed.cause or f"they are {shown} instead of 1"
        judge.fail("loss", "calls have other weights than in the loss of all rows", cause)


# --- after an optimizer's step ---


def check_synchronized(judge: Judge, held: Mapping[str, nn.Parameter]) -> None:
    """Raise NotComparableError where ranks that had other gradients have the same parameters after it."""
    after = judge.ranks.all_gather(digests({name: full(each) for name, each in held.items()}))
    if all(each == after[0] for each in after):
        raise NotComparableError(
            "ranks have other gradients before the optimizer's step, and the same parameters after it: the "
            "optimizer synchronizes them itself, which is not compared"
        )


def compare_update(
    judge: Judge, optimizer: torch.optim.Optimizer, held: Mapping[str, nn.Parameter], stepped: Stepped
) -> None:
    """Compare the parameters after the step with those of an equal optimizer."""
    before = stepped.before
    after = {name: full(each).clone() for name, each in held.items()}
    narrowest = Narrowest([*after.values(), *stepped.found.values()])  # Muon computes in bfloat16

    def changes(parameters: Tensors) -> dict[str, torch.Tensor]:
        return {name: each - before.parameters[name] for name, each in parameters.items()}

    def updated(draw: int | None = None) -> dict[str, torch.Tensor]:
        return changes(update.updated(optimizer, held, before, stepped.gradients, draw))

    try:
        with narrowest:
            right = judge.ranks.together(updated)
    except NotComparableError as why:
        judge.warn(f"the update was not compared: {why}")
    else:
        failed = judge.compare("updates", changes(after), right, updated, narrowest.limits)
        if failed is not None:
            what = f"of '{failed.tensor}' differs by {failed.error:.1e}"
            cause = f"an equal {type(optimizer).__name__} makes another update of the same gradients"
            judge.fail("update", what, cause, failed)
    cast = [
        f"'{key}' of '{name}' is {each.dtype}, the parameter {held[name].dtype}"
        for name, kept in update.state_of(optimizer, held).items()
        for key, each in kept.items()
        if isinstance(each, torch.Tensor)
        and each.is_floating_point()
        and each.dim()
        and torch.finfo(each.dtype).eps > torch.finfo(held[name].dtype).eps
    ]
    if cast := [each for of_rank in judge.ranks.all_gather(cast) for each in of_rank]:
        judge.fail("optimizer", cast[0], "its state was cast, or loaded, in a narrower type")
    names = judge.ranks.all_gather(list(held))
    if any(each != names[0] for each in names):
        judge.warn("the optimizers of ranks hold other parameters: these were not compared between ranks")
    else:
        _check_alike(judge, after, "after")


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(tensor.isfinite().all())


def _by_name(of_calls: Sequence[Sequence[torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {
        f"call {number + 1} output {place}": each
        for number, leaves in enumerate(of_calls)
        for place, each in enumerate(leaves)
    }


def _as(expected: Tensors, found: Tensors) -> dict[str, torch.Tensor]:
    return {name: each.to(found[name].dtype) if name in found else each for name, each in expected.items()}
