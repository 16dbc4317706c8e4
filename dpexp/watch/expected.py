"""Expected: the gradients of a single device that takes all calls of all ranks, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from dpexp.watch.calls import Window
from dpexp.watch.explain import sampled
from dpexp.watch.ranks import LoopRanks
from dpexp.watch.replay import Gradients, Replay
from dpexp.watch.weights import Weighed


def columns(
    window: Window, weighed: Weighed, replay: Replay, draw: int | None = None
) -> Iterator[Mapping[str, torch.Tensor]]:
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


def expected(
    window: Window,
    weighed: Weighed,
    ranks: LoopRanks,
    counted: Sequence[int],
    replay: Replay,
    draw: int | None = None,
) -> Gradients:
    """The sum over the calls of all ranks that count; every rank must call this."""

    def own() -> Gradients:
        total = replay.zeros()
        if counted[ranks.rank] == ranks.rank:
            for column in columns(window, weighed, replay, draw):
                for name, each in column.items():
                    if name in total:
                        total[name] += each.to(total[name])
        return total

    return ranks.sum(ranks.together(own))
