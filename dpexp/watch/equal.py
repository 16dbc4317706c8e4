"""Equal: an optimizer like the loop's, which steps copies of parameters, and how such a one works.

kind_of   on the first step: does it mix parameters, and is the update of a shard the shard of the update?
updated   one step, from copies
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dpexp.config.errors import NotComparableError
from dpexp.verification.compare import Limits, distance, magnitude
from dpexp.verification.rounding import OtherwiseRounded
from dpexp.watch.calls import full
from dpexp.watch.ranks import LoopRanks
from dpexp.watch.replay import Narrowest

Parameters = Mapping[str, nn.Parameter]
Tensors = Mapping[str, torch.Tensor]

_PLAIN = (int, float, str, tuple, torch.dtype, type(None))

LAST_BITS = 2
"""Last bits by which a number of a parameter may differ after a decay of it and an addition to it."""
TRIED, AGREE = 10, 1e-4
"""So many steps tell how an optimizer works: one that estimates its rate, as Prodigy does, begins to change
it after some. Changes that agree differ by so much of themselves."""
SIDES = (256, 256, 64)
"""A parameter of so many dimensions is tried with so many numbers along each of them at most: some optimizers
treat large ones otherwise, as those that factor their state."""


@dataclass(frozen=True)
class Given:
    """Copies of what one parameter steps from."""

    parameter: torch.Tensor
    gradient: torch.Tensor | None
    state: dict[str, Any]

    def cut(self, part: Any) -> Given:
        """Copies of a part, and of that of the state which has the parameter's shape; ``...`` is all."""

        def of(value: Any) -> Any:
            is_like = isinstance(value, torch.Tensor) and value.shape == self.parameter.shape
            return (value if part is ... else value[part]).clone() if is_like else copy.deepcopy(value)

        return Given(
            of(self.parameter), of(self.gradient), {key: of(each) for key, each in self.state.items()}
        )


@dataclass(frozen=True)
class Kind:
    """How an optimizer computes its update.

    ``mixes``: that of a parameter depends on others. ``whole`` are the names of those where the update of a
    part is not that part of the update, and ``magnifies`` where it magnifies rounding. ``limits`` are those
    of the narrowest type in it.
    """

    mixes: bool
    whole: frozenset[str]
    magnifies: frozenset[str]
    limits: Limits


def kind_of(optimizer: torch.optim.Optimizer, held: Parameters, ranks: LoopRanks) -> Kind:
    """Try it on parameters with random numbers; every rank must call this before the step.

    Raises NotComparableError for an optimizer that draws random numbers, and for one whose copy could step
    the loop's own parameters.
    """
    ids = {id(each) for each in held.values()}
    kept = (value for group in (vars(optimizer), *optimizer.param_groups) for value in group.values())
    some = (value for value in kept if isinstance(value, set | frozenset | tuple | list | dict))
    if any(isinstance(each, int) and each in ids for value in some for each in value):
        raise NotComparableError(f"{type(optimizer).__name__} knows parameters by their ids")
    classes = _classes(optimizer, held)
    tried = [name for names in classes.values() for name in _ends(held, names)]
    given = {name: _random(optimizer, held[name], number) for number, name in enumerate(tried)}
    gradients = (each.grad for each in held.values() if each.grad is not None)
    narrowest = Narrowest([*held.values(), *gradients])  # Muon computes in bfloat16

    def after(some: Mapping[str, Given]) -> dict[str, torch.Tensor]:
        return updated(optimizer, held, some, tried=TRIED)

    def alone() -> dict[str, torch.Tensor]:
        with narrowest:
            return {name: after({name: each})[name] for name, each in given.items()}

    def mixes() -> bool:
        if _agree(given, together := after(given), apart):
            return False
        if not _agree(given, after(given), together):
            raise NotComparableError(f"{type(optimizer).__name__} draws random numbers")
        return True

    def is_of_parts(name: str) -> bool:
        """Of the last half in every dimension."""
        shape, gradient = given[name].parameter.shape, given[name].gradient
        half = tuple(slice(size // 2, size) for size in shape)
        if max(shape, default=1) == 1 or (gradient is not None and gradient.is_sparse):
            return False
        try:
            found = after({name: given[name].cut(half)})
        except (RuntimeError, ValueError, IndexError):  # of a state in another shape
            return False
        return _agree({name: given[name].cut(half)}, found, {name: apart[name][half]})

    def is_exact(name: str) -> bool:
        some = {name: _of_rank_one(given[name])}
        return _agree(some, *(updated(optimizer, held, some, tried=1, draw=draw) for draw in (0, None)))

    def unlike(is_like: Callable[[str], bool]) -> frozenset[str]:
        """All names of the classes in which one is not so on any rank."""
        own_ones = ranks.together(lambda: [name for name in given if not is_like(name)])
        found = {name for of_rank in ranks.all_gather(own_ones) for name in of_rank}
        return frozenset(name for names in classes.values() if found.intersection(names) for name in names)

    apart = ranks.together(alone)
    is_mixed = any(ranks.all_gather(ranks.together(mixes)))
    untried = (names for names in classes.values() if not given.keys() & names)
    whole = unlike(is_of_parts).union(*untried)
    return Kind(is_mixed, whole, unlike(is_exact), narrowest.limits)


def _classes(optimizer: torch.optim.Optimizer, held: Parameters) -> dict[Any, list[str]]:
    """The names of parameters of one group, number of dimensions and placement."""
    classes: dict[Any, list[str]] = {}
    numbers = {
        id(each): number for number, group in enumerate(optimizer.param_groups) for each in group["params"]
    }
    for name, each in held.items():
        key = numbers[id(each)], each.dim(), str(getattr(each, "placements", ""))
        classes.setdefault(key, []).append(name)
    return classes


def _ends(held: Parameters, names: Sequence[str]) -> list[str]:
    """The smallest and the largest that can step, if possible of those that have parts."""
    able = [name for name in names if held[name].grad is not None or is_split(held[name])]
    parted = [name for name in able if max(held[name].shape, default=1) > 1]
    some = sorted(
        (name for name in parted or able if held[name].numel()), key=lambda name: held[name].numel()
    )
    return [*some[:1], *some[1:][-1:]]


def is_split(parameter: Any) -> bool:
    """Whether it is a DTensor of which ranks have other parts."""
    pairs = zip(
        getattr(parameter, "placements", ()), getattr(parameter, "device_mesh", parameter).shape, strict=False
    )
    return any(parts > 1 and hasattr(each, "dim") for each, parts in pairs)


def _random(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, seed: int) -> Given:
    """Full tensors that are the same on every rank, and larger numbers towards the end of each dimension.

    What is cut to ``SIDES`` has no state yet.
    """
    rng = torch.Generator().manual_seed(seed)

    def of(shape: torch.Size) -> torch.Tensor:
        made = torch.randn(shape, generator=rng)
        for dimension, length in enumerate(shape):
            made.mul_(torch.linspace(1, 2, length).reshape(-1, *[1] * (len(shape) - dimension - 1)))
        return made.to(parameter.device, parameter.dtype)

    shape, like = parameter.shape, parameter.grad
    if like is not None and like.is_sparse:
        gradient = like.detach().coalesce().clone()
        gradient.values().copy_(of(gradient.values().shape))
    else:
        most = SIDES[min(len(shape), len(SIDES)) - 1]
        shape = torch.Size(min(size, most) for size in shape)
        gradient = of(shape).mul_(1 + seed % 3)
    state = state_of(optimizer, parameter, full) if shape == parameter.shape else {}
    return Given(of(shape), gradient, state)


def _of_rank_one(given: Given) -> Given:
    """The first gradient, of few rows: what orthogonalizes that magnifies its rounding."""
    gradient: Any = given.gradient
    if not gradient.is_sparse and gradient.dim() > 1:
        rows = gradient.flatten(1)
        gradient = (rows[:, :1] * rows[:1]).reshape(gradient.shape)
    state = {
        key: torch.zeros_like(each) if isinstance(each, torch.Tensor) and each.dim() else each
        for key, each in given.state.items()
    }
    return Given(given.parameter, gradient, state)


def _agree(given: Mapping[str, Given], found: Tensors, expected: Tensors) -> bool:
    def near(name: str, right: torch.Tensor) -> bool:
        rounding = 4 * LAST_BITS * torch.finfo(right.dtype).eps * magnitude(right)
        most = rounding + AGREE * distance(right, given[name].parameter)
        return distance(found[name], right) <= most < math.inf

    return all(near(name, expected[name]) for name in given)


# --- a step ---


def state_of(
    optimizer: torch.optim.Optimizer, parameter: nn.Parameter, of: Callable[[torch.Tensor], torch.Tensor]
) -> dict[str, Any]:
    """What the optimizer keeps of a parameter, full or its shard."""
    state = optimizer.state.get(parameter, {}).items()
    return {key: of(value) if isinstance(value, torch.Tensor) else value for key, value in state}


def updated(
    optimizer: torch.optim.Optimizer,
    held: Parameters,
    given: Mapping[str, Given],
    *,
    tried: int = 0,
    draw: int | None = None,
) -> dict[str, torch.Tensor]:
    """The parameters by name that an equal optimizer makes of copies of these; a ``draw`` rounds otherwise.

    ``given`` has the state after it then. Where it is ``tried`` it takes so many steps, at a rate of 1, so
    that a warm-up hides nothing. Raises NotComparableError for an optimizer whose copy could step the loop's
    own parameters.
    """
    given = copy.deepcopy(dict(given)) if tried or draw is not None else given
    parameters = {name: nn.Parameter(each.parameter) for name, each in given.items()}
    for name, each in parameters.items():
        each.grad = given[name].gradient
        marks = {key: mark for key, mark in vars(held[name]).items() if isinstance(mark, _PLAIN)}
        vars(each).update(marks)  # as ``no_decay``, which some optimizers read
    by_id = {id(held[name]): each for name, each in parameters.items()}
    equal, groups = _copy_without_hooks(optimizer), optimizer.param_groups
    members = [[by_id[id(each)] for each in group["params"] if id(each) in by_id] for group in groups]
    equal.param_groups = [
        {**copy.deepcopy({**group, "params": []}), "params": some}
        for group, some in zip(groups, members, strict=True)
        if some
    ]
    if tried:
        for group in equal.param_groups:
            rate = group.get("lr")
            group |= {"lr": torch.ones_like(rate) if isinstance(rate, torch.Tensor) else 1.0}
    kept: dict[Any, Any] = {parameters[name]: each.state for name, each in given.items() if each.state}
    of_all = (key for key in optimizer.state if not isinstance(key, torch.Tensor))
    equal.state = defaultdict(dict, kept | {key: copy.deepcopy(optimizer.state[key]) for key in of_all})
    with nullcontext() if draw is None else OtherwiseRounded(draw):
        for _ in range(tried or 1):
            type(equal).step(equal)  # an LR scheduler has put another step on the instance
    for name, each in parameters.items():
        given[name].state.update(equal.state.get(each, {}))
    return {name: each.detach() for name, each in parameters.items()}


def _copy_without_hooks(optimizer: torch.optim.Optimizer) -> Any:
    """One like it, with its attributes. The loop's gradients are not scaled any more."""
    equal: Any = copy.copy(optimizer)
    for key, value in vars(optimizer).items():
        if key in vars(equal) or key in ("step", "grad_scale", "found_inf"):
            continue
        if not isinstance(value, _PLAIN):
            raise NotComparableError(
                f"{type(optimizer).__name__} has '{key}' of type {type(value).__name__}, by which a copy "
                "could step the loop's own parameters"
            )
        setattr(equal, key, value)
    return equal
