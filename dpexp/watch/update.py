"""Update: what an equal optimizer, stepped before the loop's, makes of the shards of this rank.

expected   before each step, from copies, bundle by bundle; only the parameters after it are kept
compared   after each step: equal, or how far apart, and how much of that is rounding
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from dpexp.config.errors import NotComparableError
from dpexp.verification.compare import Noise, Parts
from dpexp.verification.rounding import MARGIN
from dpexp.watch.calls import full
from dpexp.watch.equal import (
    LAST_BITS,
    Given,
    Kind,
    Parameters,
    Tensors,
    apart_by,
    norm,
    splits,
    state_of,
    updated,
)
from dpexp.watch.ranks import LoopRanks
from dpexp.watch.shards import Shards, own

BUNDLE = 2**26
"""So many bytes of parameters step at a time: those of small models in one call, large ones one by one."""
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
    changed: Tensors
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

    ``gradients`` are what this rank owns of them, unscaled; a parameter without one has none. At a time one
    bundle of shards is copied, or one full parameter, with its gradient and state. Raises NotComparableError.
    """
    own_ids = {id(each) for each in held.values()}
    is_part = any(id(each) not in own_ids for group in optimizer.param_groups for each in group["params"])
    if kind.mixes and (is_part or any(map(splits, held.values()))):
        what = "others than the model's" if is_part else "shards of several ranks"
        raise NotComparableError(f"{type(optimizer).__name__} mixes parameters, among them {what}")
    after, changed, rounding = dict[str, torch.Tensor](), dict[str, torch.Tensor](), dict[str, float]()

    def step(given: dict[str, Given]) -> None:
        is_drawn = not kind.magnifies.isdisjoint(given)
        again = updated(optimizer, held, given, draw=0) if is_drawn else {}
        for name, made in updated(optimizer, held, given).items():
            is_full, wide = name in kind.on_full, torch.promote_types(made.dtype, torch.float32)
            after[name] = shards.cut(name, made).clone() if is_full else made
            changed[name] = torch.linalg.vector_norm(after[name] - own(held[name]), dtype=wide)
            if is_drawn:
                other = shards.cut(name, again[name]) if is_full else again[name]
                rounding[name] = MARGIN * apart_by(other, after[name])

    def copied(name: str) -> Given:
        gradient = gradients[name].clone() if name in gradients else None
        return Given(own(held[name]).clone(), gradient, state_of(optimizer, held[name], own))

    def of_shards() -> None:
        names = sorted((name for name in held if name not in kind.on_full), key=kind.magnifies.__contains__)
        for bundle in [names] if kind.mixes else _bundles(held, names):
            step({name: copied(name) for name in bundle})

    ranks.together(of_shards)
    for name in (name for name in held if name in kind.on_full):
        gradient = shards.gathered(name, gradients[name], held[name]).clone() if name in gradients else None
        given = Given(full(held[name]).clone(), gradient, state_of(optimizer, held[name], full))
        ranks.together(partial(step, {name: given}))
    return Expected(after, changed, rounding, kind)


def _bundles(held: Parameters, names: Sequence[str]) -> Iterator[list[str]]:
    bundle, size = list[str](), 0
    for name in names:
        tensor = own(held[name])
        if bundle and size + tensor.nbytes > BUNDLE:
            yield bundle
            bundle, size = [], 0
        bundle.append(name)
        size += tensor.nbytes
    if bundle:
        yield bundle


# --- after each step ---


def compared(expected: Expected, held: Parameters) -> tuple[dict[str, Parts], Noise]:
    """How far what this rank owns of each parameter is off, beside the norm of its change; and how much of
    that is rounding, where they are not equal.
    """
    parts, noise = dict[str, Parts](), dict[tuple[str, str], list[float]]()
    for name, after in expected.after.items():
        found, size = own(held[name]), float(expected.changed[name])
        size = size if math.isfinite(size) else 0.0
        is_like = found.shape == after.shape and found.dtype == after.dtype
        apart = 0.0 if is_like and torch.equal(found, after) else math.inf
        if apart and is_like:
            apart = apart_by(found, after)
            eps, of_norms = torch.finfo(after.dtype).eps, OF_NORMS * (name in expected.kind.on_full)
            rounding = LAST_BITS * eps * norm(after) + (SIGNS * math.sqrt(eps) + of_norms) * size
            noise["updates", name] = [max(rounding, expected.rounding.get(name, 0.0))]
        parts[name] = Parts((size,), (math.inf if math.isnan(apart) else apart,), (max(1, after.numel()),))
    return parts, noise


def narrower_state(optimizer: torch.optim.Optimizer, held: Parameters) -> list[str]:
    """What the optimizer keeps in a narrower type than the parameter has, in words."""
    return [
        f"'{key}' of '{name}' is {each.dtype}, the parameter {parameter.dtype}"
        for name, parameter in held.items()
        for key, each in optimizer.state.get(parameter, {}).items()
        if isinstance(each, torch.Tensor)
        and each.is_floating_point()
        and each.dim()
        and torch.finfo(each.dtype).eps > torch.finfo(parameter.dtype).eps
    ]
