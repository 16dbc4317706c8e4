"""Equivalence: three training steps beside a single device, and what differs from it by nature."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pytest
import torch
from planted import Hides, Net, Planted, on_host
from torch import nn
from torch.nn import functional

from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.data.batch import Batch
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import Verification, batches, verify
from dpexp.strategies.modules.hooks import hooked_parameters
from dpexp.strategies.placed import Placed
from dpexp.strategies.registry import STRATEGIES
from dpexp.strategies.shards import Shards
from dpexp.timing import Timer
from dpexp.verification.equivalence import Equivalence
from dpexp.verification.result import Result
from dpexp.verification.steps.gathered_outputs import scalars_of_replicas
from dpexp.verification.steps.model_copy import copied

DEVICES = tuple(torch.device("cpu", index) for index in range(3))


def random_batches(*rows: int) -> list[Batch]:
    rng = torch.Generator().manual_seed(0)
    rows_of = [(torch.randn(n, 5, generator=rng), torch.randn(n, 2, generator=rng), n) for n in rows]
    return [Batch((inputs,), targets, n, n) for inputs, targets, n in rows_of]


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def laid_out(strategy: str, **options: Any) -> Callable[[nn.Module], Placed]:
    made = STRATEGIES[strategy](RunConfig.from_dict({"strategy": strategy, "virtual": 3} | options))
    return lambda model: made.place(model, DEVICES, Timer())


def proven(
    model: nn.Module,
    lay_out: Callable[[nn.Module], Placed] | None = None,
    of: Sequence[Batch] | None = None,
    optimizer: Any = sgd,
) -> Result:
    lay_out = lay_out or laid_out("whole")
    loss = functional.mse_loss
    return Equivalence(model, lay_out, of or random_batches(30, 10, 30), loss, optimizer).result()


@pytest.mark.parametrize("optimizer", [sgd, torch.optim.Adam, torch.optim.Adagrad])
def test_a_right_layout_trains_as_a_single_device_with_any_optimizer(optimizer: Any) -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    before = copy.deepcopy(model.state_dict())
    result = proven(model, optimizer=optimizer)
    assert result.passed
    assert result.steps == 3
    assert set(result.worst) == {"outputs", "loss", "gradients", "parameters", "updates", "optimizer"}
    assert all(each.error < 1e-13 for each in result.worst.values())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


class OwnLoss(Net):
    """Returns its loss, of which replicas make a vector."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).square().mean()


def test_a_function_that_takes_losses_of_replicas_is_one_objective_for_both_sides() -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return outputs

    equivalence = Equivalence(OwnLoss(), laid_out("whole"), random_batches(10), loss, sgd)
    with scalars_of_replicas():
        assert equivalence.result().passed


def test_an_optimizer_that_skips_a_parameter_is_found_after_its_first_step() -> None:
    result = proven(Net(), lambda model: on_host(Hides(model, "second.weight")))
    assert not result.passed
    assert result.cause.startswith("after step 1: parameters (second.weight) differ by ")
    assert result.cause.endswith(": the optimizer left it out")


def test_a_wrong_update_of_a_small_learning_rate_is_found() -> None:
    made: list[torch.optim.Optimizer] = []

    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        made.append(torch.optim.SGD(parameters, lr=1e-14 if made else 2e-14))
        return made[-1]

    torch.manual_seed(0)
    result = proven(nn.Linear(5, 2), optimizer=optimizer)
    assert result.error("parameters") < 1e-12  # type: ignore[operator]
    assert result.cause.startswith("after step 3 (30 rows): updates (")


def test_another_optimizer_state_is_found_though_parameters_are_equal() -> None:
    made: list[torch.optim.Optimizer] = []

    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        made.append(torch.optim.SGD(parameters, lr=0.0, momentum=0.9 if made else 0.8))
        return made[-1]

    result = proven(nn.Linear(5, 2), optimizer=optimizer)
    assert result.error("parameters") == 0.0
    assert result.cause.startswith("after step 3 (30 rows): optimizer (")
    assert ": momentum_buffer) differ" in result.cause


# --- the batches of a run -----------------------------------------------------------------------------


@dataclass(frozen=True)
class OtherNorm(Shards):
    """Finds the norm of all gradients to be ``factor`` times as large."""

    factor: float

    def total_norm(self, gradients: Any) -> torch.Tensor:
        return self.factor * super().total_norm(gradients)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("limit", [1e-6, 1e6])
def test_a_norm_that_is_wrong_is_found_whether_the_run_clips_by_it_or_not(
    limit: float, accumulate: int
) -> None:
    def verified(factor: float) -> Verification:
        options = {"clip_norm": limit, "accumulate": accumulate, "lr": 0.1}
        prepared = prepare(RunConfig.from_dict({"strategy": "single", **options}))
        planted = Planted(lambda model: replace(on_host(model), shards=OtherNorm(factor)))
        return verify(replace(prepared, strategy=planted))

    assert verified(1.0).passed
    for factor in (0.4, 3.0):
        assert "parameters (fc." in verified(factor).cause


@pytest.mark.parametrize(
    ("samples", "batch_size", "rows"),
    [(100, 30, [30, 10, 30]), (60, 30, [30, 30, 30]), (40, 30, [30, 10, 10]), (20, 30, [20, 20, 20])],
)
def test_the_uneven_last_batch_of_the_epoch_is_among_the_steps(
    samples: int, batch_size: int, rows: list[int]
) -> None:
    prepared = prepare(RunConfig("single", data=f"random:samples={samples}", batch_size=batch_size))
    assert [batch.rows for batch in batches(prepared)] == rows
    last = list(prepared.batches(0))[-1]
    assert any(torch.equal(batch.targets, last.targets) for batch in batches(prepared)[1:])


# --- by nature ----------------------------------------------------------------------------------------


class Kept(nn.Module):
    """Keeps a mean of its inputs, which only another forward would read."""

    def __init__(self, assigns: bool = False) -> None:
        super().__init__()
        self.assigns = assigns
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.assigns:
            self.mean = x.detach().mean(0)
        else:
            self.mean.mul_(0.9).add_(x.detach().mean(0))
        self.calls += 1
        return x


def test_buffers_that_replicas_write_are_named_with_how_far_they_are_apart() -> None:
    result = proven(nn.Sequential(Kept(), nn.Linear(5, 2)))
    assert result.passed
    (note,) = result.notes
    assert note.startswith("the forward writes to 0.mean (by ")
    assert "calls" not in note  # replica 0 counts as often as the single device
    assert "PyTorch keeps what replica 0 writes in place" in note


def test_a_buffer_that_replicas_assign_anew_is_named_too() -> None:
    result = proven(nn.Sequential(Kept(assigns=True), nn.Linear(5, 2)))
    assert result.passed
    assert "the forward writes to 0.mean (by " in result.notes[0]


def test_on_one_device_every_buffer_is_compared_and_none_is_excused() -> None:
    result = proven(nn.Sequential(Kept(), nn.Linear(5, 2)), laid_out("single"))
    assert result.passed
    assert result.notes == []
    assert result.error("buffers") == 0.0


class Normed(nn.Module):
    """InstanceNorm over steps, with running statistics that only eval mode reads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(1, track_running_stats=True)
        self.fc = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.norm(x.unsqueeze(1)).squeeze(1))


def test_running_statistics_of_instance_norm_are_named() -> None:
    result = proven(Normed())
    assert result.passed
    assert "norm.running_mean (by " in result.notes[0]
    assert "norm.running_var (by " in result.notes[0]


class Renormed(nn.Module):
    """A table whose rows the forward shortens; the inputs choose rows by their rank."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 4, max_norm=0.5)
        self.fc = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.table((x.abs().sum(1) * 10).long() % 12))


@pytest.mark.parametrize("strategy", ["whole", "functional"])
def test_rows_that_max_norm_shortens_in_replicas_are_named(strategy: str) -> None:
    result = proven(Renormed(), laid_out(strategy))
    assert result.passed
    assert "the forward writes to table.weight (by " in result.notes[0]


def test_max_norm_on_one_device_needs_no_note() -> None:
    result = proven(Renormed(), laid_out("single"))
    assert (result.passed, result.notes) == (True, [])


# --- hooks on parameters ------------------------------------------------------------------------------


class Masked(nn.Module):
    """Halves a gradient by one hook, and counts finished gradients by another, a bound method."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 2)
        self.finished = 0
        self.fc.weight.register_hook(lambda gradient: gradient / 2)
        self.fc.bias.register_post_accumulate_grad_hook(self.count)

    def count(self, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad *= 3
        self.finished += 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


def test_a_copy_of_a_model_keeps_the_hooks_on_its_parameters() -> None:
    model = Masked()
    copy_of_it = copied(model, torch.float64)
    assert hooked_parameters(copy_of_it) == ["fc.weight", "fc.bias"]
    copy_of_it(torch.ones(1, 5, dtype=torch.float64)).sum().backward()
    assert torch.equal(copy_of_it.fc.weight.grad, torch.full((2, 5), 0.5, dtype=torch.float64))
    assert torch.equal(copy_of_it.fc.bias.grad, torch.full((2,), 3.0, dtype=torch.float64))
    assert (model.finished, copy_of_it.finished) == (0, 1)


@pytest.mark.parametrize("strategy", ["whole", "functional", "place"])
def test_hooks_on_parameters_are_part_of_what_is_verified(strategy: str) -> None:
    options = {"place": ["*=cpu"]} if strategy == "place" else {}
    assert proven(Masked(), laid_out(strategy, **options)).passed

    def lost(model: nn.Module) -> Placed:
        return on_host(copy.deepcopy(model))

    result = proven(Masked(), lost)
    assert "the first gradient in backward order that differs is of parameter 'fc." in result.cause


def test_a_layout_that_makes_new_parameters_refuses_hooks_by_name() -> None:
    config = RunConfig("fsdp", options={"block": ("fc",)})
    with pytest.raises(ConfigError, match=r"fsdp .* lose the hooks of fc.weight, fc.bias"):
        STRATEGIES["fsdp"](config).prepare(Masked(), ())


# --- a copy -------------------------------------------------------------------------------------------


def test_a_copy_casts_floats_keeps_ties_and_shares_nothing() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3), nn.LSTM(3, 3))
    model[1].weight = model[0].weight
    made = copied(model, torch.float64)
    assert made[1].weight is made[0].weight
    assert {tensor.dtype for tensor in made.state_dict().values()} == {torch.float64, torch.long}
    same = copied(made, torch.float64)
    pointers = {tensor.data_ptr() for tensor in made.state_dict().values()}
    assert not pointers & {tensor.data_ptr() for tensor in same.state_dict().values()}
    assert all(a is b for a, b in zip(made[3]._flat_weights, made[3].parameters(), strict=True))


# --- the Record ---------------------------------------------------------------------------------------


def test_the_record_has_the_step_and_the_tensor_of_the_largest_error() -> None:
    prepared = prepare(RunConfig("whole", virtual=2))
    result: Verification = verify(prepared)
    assert result.steps == 7
    assert result.worst is not None
    errors = [error for key, error in asdict(result).items() if key.endswith("_error") and error is not None]
    assert len(errors) == 5, "the model has no buffers, and SGD keeps nothing"
    assert result.worst["error"] == max(errors)
    wrong = Planted(lambda model: on_host(nn.Sequential(model, nn.Linear(2, 2).double())))
    failed = verify(replace(prepared, strategy=wrong))
    assert failed.passed is False
    assert failed.worst is not None
    assert (failed.worst["step"], failed.steps) == (1, 1)
