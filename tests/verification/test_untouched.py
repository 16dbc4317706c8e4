"""Untouched: a layout that changes what every model computes is refused."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional

import dpexp
from dpexp.verification.result import VerificationError


class Net(nn.Module):
    """Of some operators that layouts may replace."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.tanh = nn.Linear(5, 4), nn.Linear(4, 2), nn.Tanh()

    def forward(self, x: torch.Tensor) -> Any:
        x = self.tanh(self.first(x)).unsqueeze(1)
        return self.second(functional.scaled_dot_product_attention(x, x, x).squeeze(1))


REPLACED: dict[str, tuple[Any, str, Any, str]] = {
    "Linear": (nn.Linear, "forward", lambda self, x: functional.linear(x, self.weight * 1.01), "outputs"),
    "linear": (functional, "linear", lambda x, w, b=None: x @ w.t() * 0.9 + b, "outputs"),
    "attention": (functional, "scaled_dot_product_attention", lambda q, k, value: value * 2, "outputs"),
    "SGD": (optim.SGD, "step", lambda self, closure=None: None, "updated"),
    "seed": (torch, "manual_seed", lambda seed: torch.default_generator, "random numbers"),
}
"""Functions that a layout replaces for every model, and what of a single device is otherwise then."""


@pytest.fixture
def restored() -> Iterator[None]:
    originals = [(owner, name, vars(owner)[name]) for owner, name, *_ in REPLACED.values()]
    yield
    for owner, name, original in originals:
        setattr(owner, name, original)


def replacing(name: str, computes_alike: bool = False) -> Any:
    owner, key, other, _ = REPLACED[name]
    original = vars(owner)[key]

    def alike(*args: Any, **options: Any) -> Any:
        return original(*args, **options)

    def lay_out(model: nn.Module, devices: Any) -> nn.Module:
        setattr(owner, key, alike if computes_alike else other)
        return model

    return lay_out


def prove(lay_out: Any) -> Any:
    batches = [(torch.randn(rows, 5), torch.randn(rows, 2)) for rows in (12, 7, 12)]
    return dpexp.prove(Net(), lay_out, batches, functional.mse_loss)


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("name", REPLACED)
def test_a_layout_that_replaces_a_function_for_all_models_is_refused(name: str) -> None:
    with pytest.raises(VerificationError, match=rf"changed what every model computes: {REPLACED[name][3]}"):
        prove(replacing(name))


@pytest.mark.usefixtures("restored")
def test_a_replaced_function_that_computes_the_same_is_no_error() -> None:
    assert prove(replacing("linear", computes_alike=True)).passed
