"""Trained weights are compared in eval mode without gradients, as a run evaluates them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from planted import Net, Planted, on_host  # noqa: F401  a run builds Net
from torch import nn

from dpexp.config.run_config import RunConfig
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import Verification, verify
from dpexp.strategies.placed import Placed


def verified(change: Callable[[nn.Module, Any, torch.Tensor], torch.Tensor]) -> Verification:
    def wrong(model: nn.Module) -> Placed:
        model.register_forward_hook(change)
        return on_host(model)

    prepared = prepare(RunConfig("single", model=f"{__file__}:Net"))
    return verify(replace(prepared, strategy=Planted(wrong)))


@pytest.mark.parametrize(
    "is_rare", [lambda module: not module.training, lambda _: not torch.is_grad_enabled()]
)
def test_what_differs_in_eval_mode_or_without_gradients_alone_is_found(
    is_rare: Callable[[nn.Module], bool],
) -> None:
    result = verified(lambda module, args, x: x * 1.1 if is_rare(module) else x)
    assert not result.passed
    assert "(30 rows: in eval mode, without gradients): outputs differ by 1.0e-01" in result.cause
    assert result.worst is not None
    assert result.worst["kind"] == "outputs"


def test_evaluations_are_no_steps() -> None:
    result = verified(lambda module, args, x: x)
    assert (result.passed, result.steps, result.output_error) == (True, 5, 0.0)


class Draws(nn.Module):
    """Draws random numbers in eval mode only."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 2)

    def example(self, samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(samples, 5, generator=generator), torch.randn(samples, 2, generator=generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x if self.training else x + torch.rand_like(x))  # type: ignore[no-any-return]


def test_a_model_that_draws_in_eval_mode_is_not_evaluated() -> None:
    assert verify(prepare(RunConfig("whole", virtual=2, model=f"{__file__}:Draws"))).passed
