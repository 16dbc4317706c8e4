"""Clipping: what the loop does to gradients with PyTorch's functions, and what that makes of one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn


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


@dataclass(frozen=True)
class Made:
    """What is made of a right gradient: ``times`` as much of it, and then no number beyond ``limit``."""

    times: float = 1.0
    limit: float = math.inf

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        scaled = gradient * self.times if self.times != 1 else gradient
        return scaled.clamp(-self.limit, self.limit) if math.isfinite(self.limit) else scaled

    def scaled(self, times: float) -> Made:
        """It, multiplied afterwards."""
        return Made(self.times * times, self.limit * times)


def factor(limit: float, size: float) -> float:
    """By what clipping multiplies gradients of this norm; 1 where it is not active."""
    return min(1.0, limit / (size + 1e-6)) if math.isfinite(size) else math.nan


def stated(function: Callable[[Any], Any], gradients: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The gradients, full tensors, as the user's function clips them."""
    held = [nn.Parameter(torch.empty_like(each)) for each in gradients.values()]
    for each, gradient in zip(held, gradients.values(), strict=True):
        each.grad = gradient.clone()
    function(held)
    pairs = zip(gradients, held, strict=True)
    return {name: each.grad for name, each in pairs if each.grad is not None}


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
