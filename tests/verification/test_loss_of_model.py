"""A loss that reads its model, or keeps something from call to call: each side computes its own."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.engine_runs import recorded
from helpers.in_ranks import records
from torch import nn
from torch.nn import functional

import dpexp
from dpexp.config.run_config import RunConfig
from dpexp.parallel import DataParallel

HERE = str(Path(__file__).resolve())
STEPS: dict[str, Any] = {"steps": 6, "warmup": 2, "phase_steps": 0, "threads": 1}
DEVICES = [torch.device("cpu", index) for index in range(2)]


class Weighted(nn.Module):
    """Its loss has a parameter that its forward does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.log_scale = nn.Linear(5, 2), nn.Parameter(torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.linear(inputs)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor | None) -> torch.Tensor:
        wanted = torch.ones_like(outputs) if targets is None else targets
        return functional.mse_loss(outputs, wanted) * self.log_scale.exp() - self.log_scale


class Stored(nn.Module):
    """Its loss reads what its forward has stored."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.linear, self.drop = nn.Linear(5, 2), nn.Dropout(p) if p else nn.Identity()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.drop(self.linear(inputs))
        self.penalty = outputs.square().mean()
        return outputs

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor | None) -> torch.Tensor:
        wanted = torch.ones_like(outputs) if targets is None else targets
        return functional.mse_loss(outputs, wanted) + self.penalty


class Counting:
    """Counts its calls, and keeps all losses, the latest with its graph."""

    def __init__(self) -> None:
        self.losses = list[float]()

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor | None) -> torch.Tensor:
        wanted = torch.zeros_like(outputs) if targets is None else targets
        self.latest = functional.mse_loss(outputs, wanted) * (1 + len(self.losses))
        self.losses.append(float(self.latest.detach()))
        return self.latest


class Centered(nn.Module):
    """A centre of the outputs so far, in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(2))

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = functional.mse_loss(outputs - self.center, targets)
        self.center.copy_(0.9 * self.center + 0.1 * outputs.detach().mean(0))
        return loss


class Locked:
    """It cannot be copied."""

    def __init__(self) -> None:
        self.rows = (row for row in range(3))

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(outputs, targets)


def replicas(model: nn.Module, devices: list[torch.device]) -> nn.Module:
    return DataParallel(model, devices)


def as_it_is(model: nn.Module, devices: list[torch.device]) -> nn.Module:
    return model


def proof_result(model: nn.Module, layout: Any, loss: Any = None, **options: Any) -> Any:
    torch.manual_seed(0)
    batches = [(torch.randn(rows, 5), torch.randn(rows, 2)) for rows in (8, 8, 5)]
    return dpexp.prove(model, layout, batches, loss, devices=DEVICES, **options)


@pytest.mark.parametrize("layout", [as_it_is, replicas])
@pytest.mark.parametrize("is_given", [False, True])
def test_a_method_of_the_model_is_that_of_each_copy(layout: Any, is_given: bool) -> None:
    model = Weighted()
    result = proof_result(model, layout, model.loss if is_given else None)
    assert (result.passed, list(result.unreached_parameters), list(result.notes)) == (True, [], [])
    assert result.error("gradients") < 1e-12


def test_a_loss_may_read_what_the_forward_has_stored_but_not_in_replicas() -> None:
    assert proof_result(Stored(), as_it_is).passed
    with pytest.raises(AttributeError) as raised:
        proof_result(Stored(), replicas)
    assert any("replicas lose what a forward stores" in note for note in raised.value.__notes__)


@pytest.mark.parametrize("model", ["Weighted", "Stored", "Stored:p=0.5"])
def test_ranks_have_the_loss_of_their_model(model: str) -> None:
    facts = records(2, STEPS | {"strategy": "ddp", "model": f"{HERE}:{model}"})[0].verification
    assert facts["passed"]
    reason = "its loss reads what the forward of one shard has stored" if "p=" in model else ""
    assert f"not compared in training mode: RuntimeError: {reason}" in facts["note"] or not reason
    assert [bool(facts[part]["note"]) for part in ("first_steps", "last_step")] == [bool(reason)] * 2
    assert reason in facts["first_steps"]["note"]


@pytest.mark.parametrize("layout", [as_it_is, replicas])
@pytest.mark.parametrize("loss", [Counting(), Centered(), Locked()])
def test_a_loss_counts_for_each_side(layout: Any, loss: Any) -> None:
    result = proof_result(Weighted(), layout, loss, accumulate=2)
    assert (result.passed, list(result.notes)) == (True, [])


@pytest.mark.parametrize(("model", "loss"), [("Weighted", None), ("Weighted", "counting"), ("Stored", None)])
def test_the_own_steps_of_a_run_go_on_from_what_its_loss_has_counted(
    dpexp_home: Path, model: str, loss: str | None
) -> None:
    given = {"loss": f"{HERE}:{loss}"} if loss else {}
    config = RunConfig("single", model=f"{HERE}:{model}", **STEPS, **given)
    found = recorded(dpexp_home, config).verification
    assert [found[name]["passed"] for name in ("first_steps", "last_step")] == [True, True]
    assert [found[name]["note"] for name in ("first_steps", "last_step")] == ["", ""]


counting = Counting()
