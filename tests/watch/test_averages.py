"""Averages: what a loss averages over is measured once, and again where something speaks against it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest
import torch
from loops import MLP, mse, numbers, watch
from torch.nn import functional

from dpexp.watch.averages import Known, rules
from dpexp.watch.ranks import LoopRanks
from dpexp.watch.weights import Weighed, Weighing

pytestmark = pytest.mark.usefixtures("one_thread")


def masked_mean(inputs: Any) -> float:
    (values, mask, _), _ = inputs
    return float((values * mask).sum() / mask.sum())


def test_labels_that_a_loss_does_not_read_rule_nothing_out() -> None:
    labels = torch.arange(24).reshape(4, 6)
    labels[:2, 3:] = -100
    values = torch.ones(4, 6) + 1e-4 * torch.arange(4).unsqueeze(1)  # of rows that are nearly alike
    found, _ = rules(masked_mean, ((values, labels != -100, labels), {}))
    assert found is not None
    assert min(found, key=lambda rule: found[rule]) == ("labels", "[0][2]")


# --- from step to step ---

Batches = list[tuple[float, tuple[Any, ...]]]
"""The micro-batches of a step: by what the loss is multiplied, the inputs, and what the loss takes else."""


def weighed(loss: Callable[..., torch.Tensor], steps: Iterable[Batches]) -> list[tuple[Weighed, int]]:
    """What the micro-batches of each step weigh, as the step before is known, and how often the loss is
    evaluated for that.
    """
    evaluations: list[int] = []

    def counted(*arguments: Any) -> torch.Tensor:
        evaluations.append(1)
        return loss(*arguments)

    run, found = watch(model := MLP(), counted), []
    known: Mapping[str, Known] = {}
    for batches in steps:
        for share, (inputs, *arguments) in batches:
            (run.loss(model(inputs), *arguments) * share).backward()
        window, ranks = run._calls.window, LoopRanks()
        evaluations.clear()
        with run._quiet():
            of_step = Weighing(None, ranks, run._replay, [0], known).weigh(window, window.losses)
        found.append((of_step, len(evaluations)))
        known = of_step.rules
        run._calls.end_window()
    run.close()
    return found


def pair(shares: tuple[float, float] = (0.5, 0.5), rows: tuple[int, int] = (6, 6), **masks: Any) -> Batches:
    of_each = [masks[name] for name in sorted(masks)] or [(), ()]
    return [
        (share, (*numbers(0, micro, number), *more))
        for micro, (share, number, more) in enumerate(zip(shares, rows, of_each, strict=True))
    ]


def is_right(found: Weighed) -> bool:
    return not found.cause and not found.apart and max(found.of_losses) - min(found.of_losses) < 1e-4


def test_a_rule_that_is_known_costs_no_evaluation_of_the_loss() -> None:
    (first, many), (second, few) = weighed(mse, [pair(), pair()])
    assert is_right(first)
    assert is_right(second)
    assert few == 2 < many  # the gradient of each


def test_a_rule_that_is_known_weighs_calls_of_other_rows() -> None:
    _, (uneven, few), (averaged, many) = weighed(
        mse, [pair(), pair((0.75, 0.25), (6, 2)), pair((0.5, 0.5), (6, 2))]
    )
    assert is_right(uneven)
    assert few == 2
    assert averaged.cause.startswith("micro-batches of unequal rows are averaged as if equal")
    assert many > 2


def test_another_coefficient_is_measured_anew() -> None:
    _, (scaled, _) = weighed(mse, [pair(), pair((0.05, 0.05))])
    assert is_right(scaled)
    assert scaled.of_losses[0] == pytest.approx(0.1)


def over_mask(outputs: torch.Tensor, targets: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return ((outputs - targets).square().sum(1) * mask).sum() / mask.sum()


FULL, HALF = torch.ones(6), torch.tensor([1.0, 0, 1, 0, 1, 0])


def test_a_mask_that_is_full_at_first_may_not_be_later() -> None:
    full = pair(a=(FULL,), b=(FULL,))
    _, (by_mask, _), (averaged, _) = weighed(
        over_mask, [full, pair((2 / 3, 1 / 3), a=(FULL,), b=(HALF,)), pair(a=(FULL,), b=(HALF,))]
    )
    assert is_right(by_mask)
    assert not is_right(averaged)


def test_labels_may_be_ignored_by_another_number_than_padding() -> None:
    def loss(logits: torch.Tensor, _: Any, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits, labels, ignore_index=3)

    full, padded = torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([0, 3, 2, 3, 1, 3])
    _, (by_labels, _), (averaged, _) = weighed(
        loss,
        [
            pair(a=(full,), b=(full,)),
            pair((2 / 3, 1 / 3), a=(full,), b=(padded,)),
            pair(a=(full,), b=(padded,)),
        ],
    )
    assert is_right(by_labels)
    assert not is_right(averaged)


@pytest.mark.parametrize("rows", [(6, 6), (6, 2)])
def test_a_loss_that_becomes_a_sum_is_measured_anew(rows: tuple[int, int]) -> None:
    reduction = "mean"

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(outputs, targets, reduction=reduction)

    def steps() -> Iterator[Batches]:
        nonlocal reduction
        yield pair()
        reduction = "sum"
        yield pair((1.0, 1.0), rows)

    (mean, _), (total, _) = weighed(loss, steps())
    assert is_right(mean)
    assert not mean.is_free
    assert is_right(total)
    assert total.is_free
