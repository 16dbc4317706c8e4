"""Locate over ranks: planted bugs are caught, right layouts pass, and every rank describes them alike."""

import functools
from typing import Any

import pytest
import torch
from command_lines import HELPERS
from in_ranks import in_ranks, training_error
from torch import nn

from dpexp.config.run_config import RunConfig
from dpexp.distributed.group import ProcessGroup
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import row, verify

GRADIENT = "the first gradient in backward order that differs is of parameter "
SHAPE = {"batch_size": 9, "data": "random:samples=32"}
"""Batches of 3 + 3 + 3 rows, and of 2 + 2 + 1."""
LOSSES = {"Tagger": "tokens", "Tagger:reduction=sum": "sum", "Shifted": "", "Tagger:returns=loss": "tokens"}
"""Models of ``losses_inside`` and the reductions of their losses."""
TRAINED = {
    f"{strategy} {model}": {"strategy": strategy, "model": f"losses_inside:{model}", "reduction": reduction}
    for model, reduction in LOSSES.items()
    for strategy in ("ddp", "fsdp")
}
CASES: dict[str, dict[str, Any]] = TRAINED | {
    "right": {"model": f"{HELPERS / 'planted.py'}:Net"},
    "Checkpointed": {"model": f"{HELPERS / 'odd_models.py'}:Checkpointed"},
    "ddp": {"model": f"{__file__}:Writing:hook=half"},
    "fsdp": {"strategy": "fsdp", "model": f"{__file__}:Writing", "block": ["fc"]},
    "clamped by a hook": {"model": f"{__file__}:Writing:hook=clamp"},
}


class Writing(nn.Module):
    """Writes to a buffer and to rows of a table in its forward, and has a hook on a parameter."""

    def __init__(self, hook: str = "") -> None:
        super().__init__()
        self.table = nn.Embedding(12, 5, max_norm=0.5)
        self.fc = nn.Linear(5, 2)
        self.register_buffer("mean", torch.zeros(5))
        if hook == "half":
            self.fc.weight.register_hook(lambda gradient: gradient / 2)
        elif hook == "clamp":  # the mean of clamped gradients is not the clamped mean
            self.fc.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))

    def example(self, samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.randint(12, (samples,), generator=generator)
        return ids, torch.randn(samples, 2, generator=generator)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        vectors = self.table(ids)
        self.mean.mul_(0.9).add_(vectors.detach().mean(0))
        return self.fc(vectors)


def config(case: str) -> RunConfig:
    return RunConfig.from_dict({"strategy": "ddp"} | SHAPE | CASES[case])


def verified(group: ProcessGroup, case: str) -> dict[str, Any]:
    return row(verify(prepare(config(case), group=group)))


def trained(group: ProcessGroup, case: str) -> float:
    return training_error(config(case), group)


@functools.cache
def started() -> dict[str, list[Any]]:
    return in_ranks(
        3, __file__, *(f"verified:{case}" for case in CASES), *(f"trained:{case}" for case in TRAINED)
    )


def of_ranks(case: str) -> Any:
    """What a case gives, which is the same on all ranks."""
    first, *others = started()[case]
    assert others == [first] * 2
    return first


def test_gradients_of_ranks_are_exact_on_uneven_batches() -> None:
    found = of_ranks("verified:right")
    assert (found["passed"], found["steps"]) == (True, 3)
    assert max(found["output_error"], found["gradient_error"], found["parameter_error"]) < 1e-13


def test_a_hook_that_is_not_linear_differs_in_ranks_and_is_named() -> None:
    found = of_ranks("verified:clamped by a hook")
    assert found["passed"] is False
    assert GRADIENT + "'fc.weight'" in found["cause"]
    assert "a hook on a parameter is not linear" in found["cause"]


def test_what_ranks_write_to_their_copies_is_named() -> None:
    found = of_ranks("verified:fsdp")
    assert found["passed"] is True
    assert "each shard writes to mean, table.weight from its own rows: not compared" in found["note"]
    of_ddp = of_ranks("verified:ddp")
    assert of_ddp["passed"] is False, "each rank shortens rows of its own copy only"
    assert "parameter 'table.weight' is not the same on all ranks that have it" in of_ddp["cause"]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("model", LOSSES)
def test_a_loss_of_ranks_is_weighted_by_what_it_averages_over(strategy: str, model: str) -> None:
    found = of_ranks(f"verified:{strategy} {model}")
    assert (found["passed"], found["cause"]) == (True, "")
    assert found["loss_error"] < 1e-14
    assert of_ranks(f"trained:{strategy} {model}") < 1e-14


def test_reentrant_checkpointing_is_verified_under_ddp() -> None:
    assert of_ranks("verified:Checkpointed")["passed"] is True
