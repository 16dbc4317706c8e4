"""Clipping: what the loop does to gradients with PyTorch's functions, and what that makes of the right ones.

The norm of the right gradients is computed in float64: that of 23 million numbers in float32 is off by 1e-3,
and a sum over shards is nearer to the truth than one over the full tensor. Where clipping is active the
loop's own factor is taken, one for all, if it is so near to the right one that only the norm's rounding
lies between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from dpexp import tensors
from dpexp.verification.diagnosis.patterns import multiple
from dpexp.watch.calls import full

Gradients = Mapping[str, torch.Tensor]
NORM = 3e-3
"""The norm of many numbers in float32 is off by up to so much."""


@dataclass(frozen=True)
class Clip:
    """A call of a function that clips: ``kind`` is ``norm`` or ``value``, ``parameters`` are ids, ``norm`` is
    the loop's, a tensor.

    It came after so many backward ``passes`` of its window, before gradients of GradScaler were unscaled if
    it ``is_scaled``. ``is_empty``: none of the parameters had a gradient.
    """

    kind: str
    parameters: frozenset[int]
    limit: float
    norm: Any
    norm_type: float
    passes: int
    is_scaled: bool
    is_empty: bool = False


def effective(
    clips: Sequence[Clip], passes: int, own: Mapping[str, nn.Parameter], written: frozenset[int]
) -> list[Clip]:
    """Those of parameters of the model, after all backward passes; groups that share one norm as one.

    Without any, the last one that was misplaced: a single device clips at the end, and this model where those
    have no gradient, or are those that the model as written had, whose ids are ``written``.
    """
    ids = frozenset(map(id, own.values()))
    some = [each for each in clips if each.parameters & ids]
    if not some:
        others = [each for each in clips if each.is_empty or each.parameters & written]
        return [replace(each, parameters=ids, passes=-1) for each in others[-1:]]
    found: list[Clip] = []
    for each in [each for each in some if each.passes >= passes] or some[-1:]:
        if found and each.norm is not None and found[-1].norm is each.norm:
            found[-1] = replace(found[-1], parameters=found[-1].parameters | each.parameters)
        else:
            found.append(each)
    return found


def clipped(
    clips: Sequence[Clip],
    passes: int,
    expected: Gradients,
    found: Gradients,
    own: Mapping[str, nn.Parameter],
) -> tuple[dict[str, torch.Tensor], bool]:
    """The right gradients as they are clipped, and whether that changes them.

    ``found`` are the loop's, ``own`` the model's parameters: all by name, full tensors of any shape. Where
    parameters of other models are clipped together with these, the norm is the loop's.
    """
    result, is_active = dict(expected), False
    for clip in clips:
        names = [name for name, each in own.items() if id(each) in clip.parameters and name in result]
        some = {name: result[name] for name in names}
        if clip.kind == "value":
            changed = {name: each.clamp(-clip.limit, clip.limit) for name, each in some.items()}
            is_active |= any(not torch.equal(changed[name], each) for name, each in some.items())
        else:
            is_whole = clip.parameters <= {id(each) for each in own.values()} or clip.passes < passes
            size = norm(some, clip.norm_type) if is_whole else float(full(clip.norm))
            times = _factor(clip.limit, size)
            fitted = multiple({name: each for name, each in found.items() if name in some}, some)
            of_loop = fitted.factors[0] if fitted is not None else times
            is_active |= times < 1
            times = of_loop if abs(of_loop / times - 1) < NORM and times < 1 + NORM and of_loop < 1 else times
            changed = {name: each * times for name, each in some.items()} if times < 1 else some
        result.update(changed)
    return result, is_active


def norm(gradients: Gradients, kind: float = 2.0) -> float:
    """The norm of all numbers together, of tensors of any shape, on their devices."""
    norms = []
    for each in gradients.values():
        of_chunks = [torch.linalg.vector_norm(tensors.wide(part), kind) for (part,) in tensors.chunks(each)]
        norms.append(float(torch.linalg.vector_norm(torch.stack(of_chunks), kind)))
    return float(torch.linalg.vector_norm(torch.tensor(norms, dtype=torch.float64), kind))


def _factor(limit: float, size: float) -> float:
    """By what clipping multiplies gradients of this norm; 1 where it is not active."""
    return min(1.0, limit / (size + 1e-6)) if math.isfinite(size) else math.nan


def stated(
    clip_norm: float | Callable[[Any], Any], gradients: Gradients
) -> tuple[dict[str, torch.Tensor], bool]:
    """The gradients as the user's statement clips them, and whether that changes them."""
    if not callable(clip_norm):
        times = _factor(clip_norm, norm(gradients))
        return {name: each * times if times < 1 else each for name, each in gradients.items()}, times < 1
    held = [nn.Parameter(torch.empty_like(each)) for each in gradients.values()]
    for each, gradient in zip(held, gradients.values(), strict=True):
        each.grad = gradient.clone()
    clip_norm(held)
    pairs = zip(gradients, held, strict=True)
    return {name: each.grad for name, each in pairs if each.grad is not None}, True


def misplaced(
    clips: Sequence[Clip], passes: int, own: Mapping[str, nn.Parameter], written: frozenset[int]
) -> list[str]:
    """What is wrong with the calls that clip, as causes of other gradients.

    ``written`` are ids of parameters that the model as written had.
    """
    ids = {id(each) for each in own.values()}
    causes = []
    for each in clips:
        if not each.parameters & ids:
            if each.parameters & written:
                causes.append(
                    "it clips parameters that the model does not have any more: the layout replaced them"
                )
            if each.is_empty and not each.parameters & written:
                causes.append("it clips parameters of another model, which have no gradient")
            continue
        if each.is_scaled:
            causes.append("it was clipped while it was still scaled (call scaler.unscale_ first)")
        if not each.passes:
            causes.append("it is clipped before backward, or after the step: nothing is left of it")
        elif each.passes < passes:
            causes.append("clipped before all micro-batches were in it")
    return list(dict.fromkeys(causes))
