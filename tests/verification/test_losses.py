"""Losses inside the model and reductions by tokens or as a sum: exact under every layout, or refused."""

from typing import Any

import pytest
import torch
from helpers.in_ranks import records
from helpers.losses_inside import Shifted, Tagger
from torch import nn
from torch.nn import functional

import dpexp
from dpexp.config.errors import ConfigError, VerificationError
from dpexp.config.run_config import RunConfig
from dpexp.data.objective import Objective
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import verify
from dpexp.parallel import DataParallel

DATA = {"data": "random:samples=25", "batch_size": 10, "virtual": 3}  # shards of 4, 4, 2 and 2, 2, 1 rows
LAYOUTS: dict[str, dict[str, Any]] = {"whole": {}, "place": {"place": ("head=cpu:1",)}}
CASES = {
    "Tagger": "tokens",
    "Tagger:returns=loss": "tokens",
    "Tagger:returns=tuple": "tokens",
    "Tagger:returns=last": "tokens",
    "Tagger:reduction=sum": "sum",
    "Tagger:returns=logits": "",
    "Shifted": "",
}
"""Models of ``losses_inside``, and what their losses are a mean over."""


@pytest.mark.parametrize("strategy", LAYOUTS)
@pytest.mark.parametrize("model", CASES)
def test_a_loss_inside_the_model_is_exact(model: str, strategy: str) -> None:
    values = {
        "strategy": strategy,
        "model": f"helpers.losses_inside:{model}",
        "reduction": CASES[model],
        **DATA,
    }
    result = verify(prepare(RunConfig.from_dict(values | LAYOUTS[strategy])))
    assert (result.passed, result.cause) == (True, "")
    assert result.worst["loss"].error < 1e-14


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("model", ["Tagger", "Tagger:reduction=sum", "Shifted"])
def test_a_loss_of_ranks_is_weighted_by_what_it_averages_over(strategy: str, model: str) -> None:
    values = {"strategy": strategy, "model": f"helpers.losses_inside:{model}", "reduction": CASES[model]}
    (found,) = records(
        2, values | {"batch_size": 9, "data": "random:samples=32", "steps": 1, "phase_steps": 0}
    )
    assert found.verification["passed"]
    assert found.verification["loss_error"] < 1e-14


def test_a_scalar_of_shards_that_is_not_the_loss_is_named() -> None:
    prepared = prepare(RunConfig("whole", model="helpers.losses_inside:Shifted", **DATA))
    assert "outputs['spread'] is a scalar, and those of shards" in "; ".join(verify(prepared).notes)


@pytest.mark.parametrize(
    ("model", "reduction"), [("Tagger", ""), ("Tagger", "sum"), ("Tagger:reduction=sum", "tokens")]
)
def test_a_loss_that_is_declared_wrongly_is_refused_with_what_to_do(model: str, reduction: str) -> None:
    config = RunConfig("whole", model=f"helpers.losses_inside:{model}", reduction=reduction, **DATA)
    result = verify(prepare(config))
    assert result.passed is False
    assert "--reduction" in result.cause


def test_prove_takes_the_loss_of_the_forward() -> None:
    devices = [torch.device("cpu", index) for index in range(3)]
    batches = []
    for seed, rows in enumerate((10, 7, 10)):
        batches.append(Tagger().example(rows, torch.Generator().manual_seed(seed)))

    def layout(model: nn.Module, devices: list[torch.device]) -> nn.Module:
        return DataParallel(model, devices)

    assert dpexp.prove(Tagger(), layout, batches, devices=devices, reduction="tokens").passed
    assert dpexp.prove(Shifted(), layout, batches, devices=devices).passed
    with pytest.raises(VerificationError) as caught:
        dpexp.prove(Tagger(), layout, batches, devices=devices)
    assert "--reduction" in caught.value.cause


# --- the objective ------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["rows", "tokens", "sum"])
@pytest.mark.parametrize("shape", [(6,), (6, 4)])
def test_the_standard_losses_take_any_reduction(reduction: str, shape: tuple[int, ...]) -> None:
    outputs, targets = torch.randn(*shape, 3, dtype=torch.float64), torch.randint(3, shape)
    objective = Objective(reduction=reduction)
    _, expected = objective.probed(outputs, targets)
    for count in (2, 4, 6):
        shards = zip(outputs.chunk(count), targets.chunk(count), strict=True)
        losses = torch.stack([objective.loss(*shard) for shard in shards])
        torch.testing.assert_close(objective.of_shards(losses, targets), expected)


def test_a_vector_is_a_loss_only_after_a_single_device_gave_a_scalar() -> None:
    objective = Objective.of(loss=lambda outputs, targets: outputs)
    with pytest.raises(ConfigError, match="must be a scalar"):
        objective.probed(torch.zeros(3), torch.zeros(3))
    with pytest.raises(ConfigError, match="must be a scalar"):
        objective.loss(torch.zeros(3), torch.zeros(3))
    known, _ = objective.probed(torch.zeros(()), torch.zeros(3))
    assert known.loss(torch.tensor([1.0, 4.0]), torch.zeros(3)).item() == pytest.approx(2.0)


# --- accumulated losses ----------------------------------------------------------------------------------


def masked_later() -> tuple[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    """A tagger, and batches of 4 texts; the first has no masked target, the others have some."""
    rng = torch.Generator().manual_seed(0)
    batches = []
    for number in range(4):
        tokens = torch.randint(16, (4, 12), generator=rng)
        lengths = torch.tensor([12] * 4 if number == 0 else [11, 3, 8, 1])
        batches.append((tokens, tokens.roll(-1, 1).masked_fill(torch.arange(12) >= lengths[:, None], -1)))
    return nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16)), batches


def over_tokens(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=-1)


def over_rows(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    by_token = functional.cross_entropy(
        outputs.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="none"
    )
    return by_token.view_as(targets).sum(1).mean()


def test_batches_that_divide_by_other_numbers_of_targets_are_not_one_batch() -> None:
    model, batches = masked_later()
    with pytest.raises(VerificationError, match="the gradients of 4 batches, averaged, are not that of all"):
        dpexp.prove(model, lambda model, _: model, batches, over_tokens, accumulate=4)
    with pytest.raises(VerificationError, match="batches, averaged, are not that of all"):
        dpexp.run("single", model=model, data=batches, loss=over_tokens, accumulate=4, steps=8, track=False)


def test_a_run_looks_at_each_window_of_its_own_steps() -> None:
    """Targets are masked in the fourth batch, which is none of those that are compared on copies."""
    model, (first, *_, last) = masked_later()
    options = {"data": [first, first, first, last], "loss": over_tokens, "accumulate": 4, "steps": 8}
    with pytest.raises(VerificationError, match="the gradients of 4 batches, averaged, are not that of all"):
        dpexp.run("whole", model=model, virtual=2, track=False, quiet=True, **options)


def test_batches_of_other_sizes_or_lengths_that_divide_by_rows_are() -> None:
    model, batches = masked_later()
    batches[1] = tuple(each[:3] for each in batches[1])
    assert dpexp.prove(model, lambda model, _: model, batches, over_rows, accumulate=4).passed
    batches[1] = tuple(each[:, :9] for each in batches[1])
    assert dpexp.prove(model, lambda model, _: model, batches, over_rows, accumulate=4).passed
