"""RngOrder: which modules draw random numbers, and that their replicas then compute one after the other."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from dpexp.devices import here, virtual
from dpexp.parallel import parallel_apply
from dpexp.parallel.rng_order import RngOrder, draws_random_numbers


class StochasticDepth(nn.Module):
    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Dropout(0.1), True),
        (nn.Sequential(nn.Linear(2, 2), nn.AlphaDropout(0.1)), True),
        (nn.LSTM(2, 2, 2, dropout=0.5), True),
        (nn.MultiheadAttention(4, 2, dropout=0.1), True),
        (nn.TransformerEncoderLayer(4, 2, 8), True),
        (StochasticDepth(0.2), True),
        (nn.RReLU(), True),
        (nn.Dropout(0.0), False),
        (nn.LSTM(2, 2), False),
        (nn.MultiheadAttention(4, 2), False),
        (StochasticDepth(0.0), False),
        (nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1), nn.ReLU()), False),
    ],
)
def test_layers_that_draw_in_training_are_known(module: nn.Module, expected: bool) -> None:
    assert draws_random_numbers(module) is expected
    assert not draws_random_numbers(module.eval())


def test_a_wrapped_module_is_seen_and_any_other_callable_is_not() -> None:
    class Wrapper:
        module = nn.Dropout(0.5)

    assert draws_random_numbers(Wrapper())
    assert not draws_random_numbers(print)


def test_replicas_with_dropout_compute_one_after_the_other_in_order() -> None:
    class Noisy(nn.Dropout):
        def forward(self) -> None:  # type: ignore[override]
            order.append(("begin", here()[1]))
            order.append(("end", here()[1]))

    order: list[tuple[str, int | None]] = []
    for _ in range(20):
        order.clear()
        parallel_apply([Noisy()] * 4, [()] * 4, None, virtual(4))
        assert order == [(what, i) for i in range(4) for what in ("begin", "end")]


def test_the_turn_passes_on_when_a_replica_raises() -> None:
    class Failing(nn.Dropout):
        def forward(self) -> None:  # type: ignore[override]
            done.append(here()[1])
            raise ValueError("bad")

    done: list[int | None] = []
    with pytest.raises(ValueError, match="replica 0"):
        parallel_apply([Failing()] * 3, [()] * 3, None, virtual(3))
    assert done == [0, 1, 2]


def test_replicas_on_different_generators_do_not_wait_for_each_other() -> None:
    turns = RngOrder(
        [torch.device("meta"), torch.device("cpu", 0), torch.device("meta"), torch.device("cpu", 1)]
    )
    with turns.turn(0), turns.turn(1):
        later = threading.Thread(target=lambda: turns.turn(3).__enter__())
        later.start()
        later.join(0.05)
        assert later.is_alive()
    later.join(60)
    assert not later.is_alive()
