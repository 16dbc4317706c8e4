"""Update: what an equal optimizer, stepped before the loop's, makes of the shards of this rank.

expected   before each step, from copies, bundle by bundle; only the parameters after it are kept
compared   after each step: equal, or how far apart, and how much of that is rounding
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from dpexp.config.errors import NotComparableError
from dpexp.tensors import empty_together
from dpexp.verification.compare import Noise, Parts, distance, magnitude
from dpexp.verification.rounding import MARGIN
from dpexp.watch.calls import full
from dpexp.watch.equal import (
    LAST_BITS,
    Given,
    Kind,
    Parameters,
    Tensors,
    is_split,
    state_of,
    updated,
)
from dpexp.watch.ranks import LoopRanks
from dpexp.watch.shards import Shards, own

Bundle = list[tuple[str, Any]]
"""Names, and of each which rows."""
BUNDLE = 2**23
"""So many bytes of parameters step at a time: those of small models in one call, large ones by their rows."""
SIGNS = 4
"""A change may be off by so many roots of a last bit of itself: one that is made of signs has the other one
wherever what it reads is zero but for a few last bits."""
OF_NORMS = 0.01
"""How far off an update of full tensors may be: in float32 a norm of 23 million numbers is off by 1.3e-3, and
that of their shards is not."""


@dataclass(frozen=True)
class Expected:
    """Of what this rank owns of each parameter: what it is ``after`` the step, the norm by which it is
    ``changed``, and how far rounding that is magnified may set that apart.
    """

    after: Tensors
    changed: Mapping[str, float]
    rounding: Mapping[str, float]
    kind: Kind


# --- before each step ---


def expected(
    optimizer: torch.optim.Optimizer,
    held: Parameters,
    gradients: Tensors,
    kind: Kind,
    shards: Shards,
    ranks: LoopRanks,
) -> Expected:
    """What the step must make of these parameters. Every rank must call this before it.

    ``gradients`` are what this rank owns of them; a parameter without one has none. At a time one
    bundle is copied, or one full parameter, with its gradient and state. Raises NotComparableError.
    """
    own_ids = {id(each) for each in held.values()}
    is_part = any(id(each) not in own_ids for group in optimizer.param_groups for each in group["params"])
    if kind.mixes and (is_part or any(map(is_split, held.values()))):
        what = "others than the model's" if is_part else "shards of several ranks"
        raise NotComparableError(f"{type(optimizer).__name__} mixes parameters, among them {what}")
    after = empty_together(
        {name: (shards.shape(name), each.dtype, each.device) for name, each in held.items()}
    )
    squares, rounding = dict.fromkeys(held, 0.0), dict[str, float]()

    def step(bundle: Bundle, full: Given | None = None) -> None:
        given = {
            name: _unscaled(optimizer, full or _given(optimizer, held[name], gradients.get(name)).cut(part))
            for name, part in bundle
        }
        is_drawn = not kind.magnifies.isdisjoint(given)
        again = updated(optimizer, held, given, draw=0) if is_drawn else {}
        made = updated(optimizer, held, given)
        for name, part in bundle:
            found = made[name] if full is None else shards.cut(name, made[name])
            after[name][part] = found
            squares[name] += distance(found, own(held[name])[part]) ** 2
            if is_drawn:
                other = again[name] if full is None else shards.cut(name, again[name])
                rounding[name] = MARGIN * distance(other, found)

    def of_shards() -> None:
        for bundle in _bundles(held, kind):
            step(bundle)

    ranks.together(of_shards)
    for name in (name for name in held if name in kind.whole and is_split(held[name])):
        gradient = shards.gathered(name, gradients[name], held[name]) if name in gradients else None
        given = Given(full(held[name]), gradient, state_of(optimizer, held[name], full)).cut(...)
        ranks.together(partial(step, [(name, ...)], given))
    return Expected(after, {name: math.sqrt(each) for name, each in squares.items()}, rounding, kind)


def _given(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, gradient: torch.Tensor | None) -> Given:
    return Given(own(parameter), gradient, state_of(optimizer, parameter, own))


def _unscaled(optimizer: torch.optim.Optimizer, given: Given) -> Given:
    """With the gradient divided by what a fused optimizer itself divides it by, as GradScaler asks it."""
    scale = getattr(optimizer, "grad_scale", None)
    if scale is None or given.gradient is None:
        return given
    return replace(given, gradient=given.gradient / scale)


def _bundles(held: Parameters, kind: Kind) -> Iterator[Bundle]:
    """What is stepped at a time: the rows of elementwise ones, or parameters that are no shards, by size."""
    bundle, left = Bundle(), BUNDLE
    for name in sorted(held, key=kind.magnifies.__contains__):
        shard = own(held[name])
        if name in kind.whole and is_split(held[name]):
            continue
        is_sparse = (gradient := held[name].grad) is not None and gradient.is_sparse
        is_whole = kind.mixes or is_sparse or name in kind.whole or not shard.dim()
        rows = max(1, BUNDLE * len(shard) // max(1, shard.nbytes)) if not is_whole else 0
        parts = [slice(at, at + rows) for at in range(0, len(shard), rows)] if rows else [...]
        for part in parts:
            size = shard[part].nbytes
            if bundle and not kind.mixes and (size > left or bundle[-1][0] == name):
                yield bundle
                bundle, left = Bundle(), BUNDLE
            bundle.append((name, part))
            left -= size
    if bundle:
        yield bundle


# --- after each step ---


def compared(expected: Expected, held: Parameters) -> tuple[dict[str, Parts], Noise]:
    """How far what this rank owns of each parameter is off, beside the norm of its change; and how much of
    that is rounding, where they are not equal.
    """
    parts, noise = dict[str, Parts](), dict[tuple[str, str], list[float]]()
    for name, after in expected.after.items():
        found, size = own(held[name]), expected.changed[name]
        size = size if math.isfinite(size) else 0.0
        is_like = found.shape == after.shape and found.dtype == after.dtype
        apart = 0.0 if is_like and torch.equal(found, after) else math.inf
        if apart and is_like:
            apart = distance(found, after)
            eps, of_norms = torch.finfo(after.dtype).eps, OF_NORMS * (name in expected.kind.whole)
            rounding = LAST_BITS * eps * magnitude(after) + (SIGNS * math.sqrt(eps) + of_norms) * size
            noise["updates", name] = [max(rounding, expected.rounding.get(name, 0.0))]
        parts[name] = Parts((size,), (apart,), (max(1, after.numel()),))
    return parts, noise


def narrower_state(optimizer: torch.optim.Optimizer, held: Parameters) -> list[str]:
    """What the optimizer keeps in a narrower type than the parameter has, in words; but not what it begins
    with in this type.
    """
    return [
        f"'{key}' of '{name}' is {each.dtype}, the parameter {parameter.dtype}"
        for name, parameter in held.items()
        if (narrower := _narrower(optimizer.state.get(parameter, {}), parameter))
        for begun in [_begun(optimizer, held, name)]
        for key, each in narrower.items()
        if key not in begun
    ]


def _narrower(state: Mapping[str, Any], parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        key: each
        for key, each in state.items()
        if isinstance(each, torch.Tensor)
        and each.is_floating_point()
        and each.dim()
        and torch.finfo(each.dtype).eps > torch.finfo(parameter.dtype).eps
    }


def _begun(optimizer: torch.optim.Optimizer, held: Parameters, name: str) -> Mapping[str, torch.Tensor]:
    """Of what the optimizer makes in its first step what is narrower."""
    parameter = own(held[name]).clone()
    given = Given(parameter, torch.zeros_like(parameter), {})
    updated(optimizer, held, {name: given})
    return _narrower(given.state, parameter)
