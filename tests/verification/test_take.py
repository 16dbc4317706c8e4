"""Take: a state that changes between steps, gradients of zero, and accelerators that round otherwise."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from helpers.engine_runs import ended
from helpers.planted import Net, on_host, proof_result, random_batches
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.optimizer import register_optimizer_step_post_hook

import dpexp
from dpexp import devices
from dpexp.config.errors import NotComparableError
from dpexp.config.run_config import RunConfig
from dpexp.copies import copied
from dpexp.data.objective import Objective
from dpexp.engine.prepare import prepare
from dpexp.strategies.placed import Placed
from dpexp.training.optimizers import OwnOptimizer
from dpexp.training.trainer import Trainer
from dpexp.verification.compare import Limits
from dpexp.verification.diagnosis.locate import Locator
from dpexp.verification.sides import Sides
from dpexp.verification.single_device import SingleDevice, in_dtype
from dpexp.verification.take import take_step
from dpexp.verification.trial import Trial


def test_parameters_that_change_between_two_steps_are_found_by_the_next() -> None:
    model = Net().double()
    sides, trial = both_of(model), Trial()
    batches = [in_dtype(batch, torch.float64) for batch in random_batches(8, 5, 8)]
    for batch in batches[:2]:
        trial = take_step(sides, trial, batch, batch)
    assert (trial.failure, trial.compared) == (None, 2)
    with torch.no_grad():
        model.second.weight += 1e-9
    failure = take_step(sides, trial, batches[2], batches[2]).failure
    assert failure is not None
    assert failure.text.startswith("parameter 'second.weight' is not as the step before has left it")


def both_of(model: nn.Module) -> Sides:
    """The model itself as a layout, beside a copy."""
    objective = Objective.of(loss=functional.mse_loss)
    optimizer = OwnOptimizer(partial(torch.optim.SGD, lr=0.1))
    single = SingleDevice(copied(model, torch.float64), optimizer)
    layout = Trainer(on_host(model), objective.loss, optimizer)
    return Sides(layout, objective, single, Limits(1e-12))


def test_a_step_that_is_taken_again_draws_the_same_random_numbers() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 2)).double()
    sides = both_of(model)
    model[2].register_forward_hook(lambda module, args, outputs: outputs * 1.001)
    failure = take_step(sides, Trial(), *[in_dtype(random_batches(8)[0], torch.float64)] * 2).failure
    assert failure is not None
    assert Locator(sides, failure, model).find().module == "2"


class Dead(nn.Sequential):
    """Its weights are zero, and so are all of its gradients."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(5, 8, bias=False), nn.ReLU(), nn.Linear(8, 2, bias=False))
        for parameter in self.parameters():
            nn.init.zeros_(parameter)


def test_a_model_whose_gradients_are_all_zero_is_not_called_verified() -> None:
    config = RunConfig("whole", virtual=2, model=f"{__file__}:Dead", steps=2, warmup=1, phase_steps=0)
    facts = ended(prepare(config))["verification"]
    assert (facts["checked"], facts["passed"]) == (False, None)
    assert "no parameter had a gradient other than zero" in facts["note"]
    batches = [(torch.randn(8, 5), torch.randn(8, 2))]
    with pytest.raises(NotComparableError, match="no parameter had a gradient other than zero"):
        dpexp.prove(Dead(), lambda model, devices: model, batches, functional.mse_loss)


# --- what nothing but a step changes ---------------------------------------------------------------------


def acting(act: Callable[[Any], object], *, on_optimizer: bool = False) -> Callable[[nn.Module], Placed]:
    """A layout on the host that acts on its model, or on its optimizer, after each step of this optimizer."""

    def lay_out(model: nn.Module) -> Placed:
        own = {id(each) for each in model.parameters()}

        def hook(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            if any(id(each) in own for group in optimizer.param_groups for each in group["params"]):
                act(optimizer if on_optimizer else model)

        HOOKS.append(register_optimizer_step_post_hook(hook))
        return on_host(model)

    return lay_out


HOOKS: list[Any] = []


@pytest.fixture
def removed_hooks() -> Iterator[None]:
    yield
    while HOOKS:
        HOOKS.pop().remove()


@pytest.mark.usefixtures("removed_hooks")
def test_buffers_that_change_after_the_optimizer_are_found() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    wrong = acting(lambda model: model[1].num_batches_tracked.add_(1))
    assert "buffers (1.num_batches_tracked)" in proof_result(model, wrong, random_batches(12, 12, 12)).cause


# --- what an optimizer keeps -----------------------------------------------------------------------------


class Scheduled(torch.optim.SGD):
    """Its step advances its schedule."""

    def __init__(self, parameters: Any, lr: float = 0.05) -> None:
        super().__init__(parameters, lr=lr)
        self.schedule = LambdaLR(self, lambda step: min(1.0, (step + 1) / 10))

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        self.schedule.step()


class Momentum(torch.optim.Optimizer):
    """Keeps its moments in a list."""

    def __init__(self, parameters: Any, lr: float = 0.05) -> None:
        super().__init__(parameters, {"lr": lr})
        self.moments = [torch.zeros_like(each) for each in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter, moment in zip(self.param_groups[0]["params"], self.moments, strict=True):
            moment.mul_(0.9).add_(0.0 if parameter.grad is None else parameter.grad)
            parameter.sub_(moment, alpha=self.param_groups[0]["lr"])


class Flat(Momentum):
    """Makes its moments in its first step."""

    def __init__(self, parameters: Any, lr: float = 0.05) -> None:
        super().__init__(parameters, lr)
        self.made, self.moments = self.moments, []

    def step(self, closure: Any = None) -> None:
        self.moments = self.moments or self.made
        super().step(closure)


@pytest.mark.parametrize(("warmup", "gaps"), [(0, ["its own training steps"]), (4, [])])
def test_what_an_optimizer_makes_in_its_first_step_is_compared_from_that_step_on(
    warmup: int, gaps: list[str]
) -> None:
    """Also where rounding is measured, by new optimizers that have taken no step."""
    options = {
        "model": "odd_models:Scan",
        "optimizer": f"{__file__}:Flat",
        "warmup": warmup,
        "steps": 4,
    }
    found = ended(prepare(RunConfig("whole", virtual=2, **options)))
    assert (found["error"], found["verification"]["passed"]) == ("", True)
    assert found["verification"]["gaps"] == gaps


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [("Scheduled", {"warmup": 1}), ("Momentum", {"warmup": 4, "accumulate": 4})],
)
def test_an_optimizer_that_keeps_something_in_attributes_is_verified_from_any_step(
    optimizer: str, options: dict[str, int]
) -> None:
    config = RunConfig("single", optimizer=f"{__file__}:{optimizer}", devices="cpu", steps=12, **options)
    found = ended(prepare(config))
    assert (found["error"], found["verification"]["passed"]) == ("", True)
    assert found["verification"]["last_step"]["note"] == ""


@pytest.mark.usefixtures("removed_hooks")
@pytest.mark.parametrize(
    ("optimizer", "act", "found"),
    [
        (Scheduled, lambda optimizer: optimizer.schedule.step(), "optimizer (attribute: schedule."),
        (Momentum, lambda optimizer: optimizer.moments[0].mul_(2), "optimizer (attribute: moments.0)"),
    ],
)
def test_what_a_layout_changes_of_it_is_found(optimizer: Any, act: Any, found: str) -> None:
    result = proof_result(Net(), acting(act, on_optimizer=True), random_batches(8, 8, 8), optimizer=optimizer)
    assert found in result.cause


@pytest.mark.gpu
def test_what_a_kernel_of_an_accelerator_rounds_is_measured_there() -> None:
    """CUDA's hardswish of float64 rounds 1/6 to float32."""
    gpu = devices.accelerators()[0]

    def lay_out(model: nn.Module) -> Placed:
        return Placed(devices.place(model, gpu), gpu, gpu, (gpu,))

    model = nn.Sequential(nn.Linear(5, 8), nn.Hardswish(), nn.Linear(8, 2))
    result = proof_result(model, lay_out, random_batches(30, 10, 30))
    assert result.passed, result.cause
    assert 1e-12 < result.tolerance < 1e-5
    assert any("smaller errors are not seen" in note for note in result.notes)

    def wrong(model: Any) -> Placed:
        model[2].weight.register_hook(lambda gradient: gradient * 1.001)
        return lay_out(model)

    assert "2.weight" in proof_result(model, wrong, random_batches(30, 10, 30)).cause
