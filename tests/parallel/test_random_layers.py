"""Random layers: which modules draw random numbers, and that their replicas compute one after the other."""

import pytest
from torch import nn

from dpexp.devices import current_device, virtual
from dpexp.parallel import parallel_apply
from dpexp.parallel.random_layers import draws_random_numbers, is_random_layer
from dpexp.verification.mode import Nature, Switch
from dpexp.verification.recorder import Step


class StochasticDepth(nn.Module):
    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob


class PowerMean(nn.Module):
    """Its ``p`` is an exponent."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Dropout(0.1), True),
        (nn.Sequential(nn.Linear(2, 2), nn.AlphaDropout(0.1)), True),
        (nn.LSTM(2, 2, 2, dropout=0.5), True),
        (nn.MultiheadAttention(4, 2, dropout=0.1), True),
        (StochasticDepth(0.2), True),
        (nn.RReLU(), True),
        (nn.Dropout(0.0), False),
        (StochasticDepth(0.0), False),
        (PowerMean(3.0), False),
        (nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1), nn.ReLU()), False),
    ],
)
def test_layers_that_draw_in_training_are_recognized(module: nn.Module, expected: bool) -> None:
    assert draws_random_numbers(module) is expected
    assert not draws_random_numbers(module.eval())


@pytest.mark.parametrize(
    "layer", [StochasticDepth(0.2), nn.RReLU(), nn.LSTM(2, 2, 2, dropout=0.5), nn.Dropout()]
)
def test_verification_puts_exactly_the_random_layers_into_eval_mode(layer: nn.Module) -> None:
    """Attributes, RReLU: two detectors used to disagree on them."""
    model = nn.Sequential(nn.Linear(2, 2), layer, PowerMean(2.0))
    nature = Nature.of(model, lambda quiet: Step())
    assert nature.batch_norms | nature.drawing == {"1"}
    Switch(model).set(nature.drawing)
    assert [is_random_layer(part) for part in model] == [False, not isinstance(layer, nn.LSTM), False]
    assert [part.training for part in model] == [True, isinstance(layer, nn.LSTM), True]


def test_replicas_with_dropout_compute_one_after_the_other_in_order() -> None:
    class Noisy(nn.Dropout):
        def forward(self) -> None:  # type: ignore[override]
            order.append(("begin", current_device()[1]))
            order.append(("end", current_device()[1]))

    order: list[tuple[str, int | None]] = []
    for _ in range(20):
        order.clear()
        parallel_apply([Noisy()] * 4, [()] * 4, None, virtual(4))
        assert order == [(what, i) for i in range(4) for what in ("begin", "end")]
