"""Expected: what was seen of a step, and the gradients of a single device that takes all calls of all ranks,
one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from dpexp.verification.compare import Limits
from dpexp.watch.calls import Window
from dpexp.watch.clipping import Clip
from dpexp.watch.ranks import LoopRanks
from dpexp.watch.replay import Gradients, Replay
from dpexp.watch.weights import Weighed

Tensors = Mapping[str, torch.Tensor]
SAMPLE = 4096
"""So many numbers of each parameter are read at most."""


@dataclass(frozen=True)
class Observed:
    """What was seen of a step before an optimizer steps.

    ``residue`` are the gradients that the steps before have left, ``unclipped`` those before they were
    clipped: both ``sampled``. ``carried`` are calls since the optimizer's last step that a step of another
    one has closed. ``scale`` is GradScaler's, ``passes`` how often backward was called. ``is_edited``: after
    the last pass the loop has written to gradients by code of its own. ``is_by_grad``: they come from
    autograd.grad. ``hook`` is that of DDP's communication. ``written`` are ids of the parameters that the
    model as written had.
    """

    window: Window
    passes: int
    clips: Sequence[Clip]
    residue: Tensors
    unclipped: Tensors | None
    carried: Window
    is_scaled: bool
    scale: float
    is_edited: bool
    is_by_grad: bool
    hook: str
    written: frozenset[int]


@dataclass(frozen=True)
class Step:
    """What a single device computes in this step: ``sums`` are its gradients before clipping."""

    number: int
    window: Window
    parameters: Tensors
    counted: Sequence[int]
    weighed: Weighed
    limits: Limits
    loss: float
    samples: int
    sums: Tensors = field(default_factory=dict)


def columns(window: Window, weighed: Weighed, replay: Replay, draw: int | None = None) -> Iterator[Tensors]:
    """What each call of this rank should add, and each penalty, by name of the parameter."""
    for call, times in zip(window.calls, weighed.factors, strict=True):
        yield replay.gradients_of(call, times, draw)
    for penalty, times in zip(window.penalties, weighed.of_penalties, strict=True):
        yield {name: each / times for name, each in penalty.gradients.items()}


def by_pass(window: Window, weighed: Weighed, replay: Replay) -> list[dict[str, torch.Tensor]]:
    """What each backward pass of this rank should add: some numbers of each parameter."""
    numbers = [*(each.backward for each in window.calls), *(each.backward for each in window.penalties)]
    found: dict[int, dict[str, torch.Tensor]] = {number: {} for number in sorted(set(numbers))}
    for number, column in zip(numbers, columns(window, weighed, replay), strict=True):
        for name, each in sampled(column).items():
            known = found[number].get(name)
            found[number][name] = each if known is None else known + each
    return list(found.values())


def expected(step: Step, ranks: LoopRanks, replay: Replay, draw: int | None = None) -> Gradients:
    """The sum over the calls of all ranks that count; every rank must call this."""

    def own() -> Gradients:
        total = replay.zeros()
        if step.counted[ranks.rank] == ranks.rank:
            for column in columns(step.window, step.weighed, replay, draw):
                for name, each in column.items():
                    if name in total:
                        total[name] += each.to(total[name])
        return total

    return ranks.sum(ranks.together(own))


def sampled(gradients: Tensors) -> dict[str, torch.Tensor]:
    """Some numbers of each, by name, as vectors in float64 on the host."""
    flat = {name: each.detach().cpu().flatten().double() for name, each in gradients.items()}
    return {name: each[:: max(1, len(each) // SAMPLE)] for name, each in flat.items()}
