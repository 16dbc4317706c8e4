"""Optimizers: every one trains every layout as a single device, sparse tables too."""

from itertools import islice
from typing import Any

import pytest
import torch
from torch import nn

from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import verify
from dpexp.measurement.observe import device_map
from dpexp.strategies.placed import Shards
from dpexp.timing import Timer
from dpexp.training.optimizers import clip
from dpexp.training.trainer import Trainer

TABLE = "embedding:rows=40,dim=4"
BY_HAND = f"{__file__}:momentum_by_hand"


def momentum_by_hand(parameters: list[nn.Parameter], factor: float = 0.5) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=factor)


def without_parameters(lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.ones(2))], lr)


def config(optimizer: str, strategy: str = "whole", **values: Any) -> RunConfig:
    return RunConfig.from_dict({"strategy": strategy, "optimizer": optimizer, "threads": 1} | values)


def hybrid(optimizer: str, **values: Any) -> RunConfig:
    return config(optimizer, "hybrid", **{"sparse": True, "model": TABLE} | values)


def trainer(config: RunConfig, steps: int = 0) -> Trainer:
    """The trainer of a run after so many steps."""
    prepared = prepare(config, one_batch=False)
    found = prepared.trainer(prepared.strategy.place(prepared.model, prepared.selection.used, Timer()))
    found.take_steps(islice(prepared.endless_batches(), steps))
    return found


class Splits(torch.optim.Optimizer):
    """One optimizer for matrices, another for the rest, and the norms of all steps in a list."""

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        matrices = [each for each in parameters if each.dim() == 2]
        self.norms: list[float] = []
        self.members = [
            torch.optim.SGD(matrices, lr, momentum=0.9),
            torch.optim.AdamW([each for each in parameters if each.dim() != 2], lr),
        ]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        parameters = self.param_groups[0]["params"]
        self.norms.append(sum(float(each.grad.norm()) for each in parameters if each.grad is not None))
        for member in self.members:
            member.step()


class Langevin(torch.optim.SGD):
    """Adds noise."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for each in self.param_groups[0]["params"]:
            each.add_(torch.randn_like(each), alpha=0.01)


class Sharpness(torch.optim.SGD):
    """Computes the loss again."""

    def step(self, closure: Any = None) -> None:
        assert closure is not None, "it requires a closure"


# --- every optimizer, every layout ----------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adagrad", "adam:amsgrad=True", BY_HAND])
def test_every_optimizer_trains_a_layout_as_a_single_device(optimizer: str) -> None:
    result = verify(prepare(config(optimizer, "hybrid", model=TABLE, clip_norm=0.02, virtual=2)))
    assert result.passed, result.cause
    assert result.worst["parameters"].error < 1e-12
    assert (result.error("optimizer") is None) == (optimizer == "sgd")


@pytest.mark.parametrize("kind", ["Splits", "Langevin"])
def test_an_optimizer_of_the_users_is_compared_with_what_it_keeps_and_draws(kind: str) -> None:
    result = verify(prepare(config(f"{__file__}:{kind}", virtual=2)))
    assert result.passed, [result.cause, *result.notes]
    assert result.worst["parameters"].limit < 1e-11, "noise is no rounding"


def test_rounding_of_a_gradient_that_is_zero_is_not_taken_for_a_wrong_layout() -> None:
    """The bias of an attention's keys has no effect: Adagrad takes full steps along its rounding errors."""
    result = verify(prepare(config("adagrad", model="transformer:depth=1,dim=8,heads=2", batch_size=7)))
    assert result.passed, result.cause


def test_tables_get_the_variant_and_everything_else_the_optimizer() -> None:
    expected = {"sgd": "SGD", "adam": "SparseAdam", "adagrad": "Adagrad"}
    for optimizer, variant in expected.items():
        made = trainer(hybrid(optimizer, virtual=1)).optimizers
        assert made is not None
        assert [type(each).__name__ for each in made.members][-1] == variant
        is_one = optimizer != "adam"
        assert len(made.members) == 2 - is_one, "a step of each costs as much as a small table's"


# --- what is refused, before a run opens ----------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        ("adamw", ["--optimizer adamw", "sparse gradients of embedding", "adamw changes every row"]),
        ("momentum", ["momentum changes every row", "use sgd, adam, adagrad, or dense gradients"]),
        ("sgd:momentum=0.5", ["--optimizer sgd:momentum=0.5 cannot take the sparse gradients"]),
        ("sgd:weight_decay=0.1", ["--optimizer sgd:weight_decay=0.1 cannot take the sparse gradients"]),
        ("adam:weight_decay=0.1", ["SparseAdam takes no option 'weight_decay'"]),
        ("adagrad:weight_decay=0.1", ["cannot take the sparse gradients", "weight_decay"]),
        ("torch.optim:RMSprop", ["--optimizer torch.optim:RMSprop cannot take the sparse gradients"]),
        ("adagrod", ["unknown optimizer 'adagrod'", "did you mean 'adagrad'?"]),
        ("adam:beta=1", ["takes no option 'beta'", "did you mean 'betas'?"]),
        ("adam:betas=(2,3)", ["--optimizer adam:betas=(2,3)", "beta"]),
        ("adam:eps=tiny", ["'eps' takes a number", "'tiny'"]),
        ("adam:lr=0.1", ["give the learning rate as --lr"]),
        ("torch.nn:Linear:in_features=1,out_features=1", ["torch.nn:Linear"]),
        (f"{__file__}:Sharpness", ["requires a closure", "dpexp calls step() without a closure"]),
        (f"{__file__}:without_parameters", [":without_parameters takes no list of parameters to train"]),
    ],
)
def test_an_optimizer_that_cannot_train_the_model_is_refused_by_name(
    optimizer: str, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(hybrid(optimizer))
    assert all(word in str(caught.value) for word in words), caught.value


# --- state ----------------------------------------------------------------------------------------


def test_the_device_map_has_the_state_and_its_bytes() -> None:
    steps = trainer(hybrid("adagrad"), 1)
    assert steps.optimizers is not None
    found = device_map(steps.placed, steps.optimizers.states())
    rows = [row for row in found if row["kind"] == "optimizer"]
    assert [(row["module"], row["parameter"], row["bytes"], row["device"]) for row in rows] == [
        ("embedding", "weight: sum", 40 * 4 * 4, "cpu"),
        ("linear", "weight: sum", 4 * 10 * 4, "cpu:0"),
        ("linear", "bias: sum", 10 * 4, "cpu:0"),
    ]


# --- the norm of gradients ------------------------------------------------------------------------


def test_gradients_are_scaled_to_the_largest_norm_and_shorter_ones_stay() -> None:
    table, weight = nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(2))
    rows = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([[1.0, 2.0], [1.0, 2.0]]), (3, 2))
    for limit, scale in ((3.0, 0.5), (10.0, 1.0)):
        table.grad, weight.grad = rows.clone(), torch.tensor([4.0, 0.0])
        clip({"table": table, "weight": weight}, Shards(), limit)  # 2, 4 and 4: the norm is 6
        assert torch.allclose(table.grad.to_dense()[1], scale * torch.tensor([2.0, 4.0]), rtol=1e-5)
        assert torch.allclose(weight.grad, scale * torch.tensor([4.0, 0.0]), rtol=1e-5)


# --- accumulation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sparse", [True, False])
def test_accumulated_batches_have_one_step_with_the_mean_of_their_gradients(sparse: bool) -> None:
    of = hybrid("sgd", sparse=sparse, accumulate=3, clip_norm=0.05, dtype="float64", lr=1.0)
    steps, batches = trainer(of), list(prepare(of, one_batch=False).batches(0))[:3]
    before = steps.full_parameters()["embedding.weight"].clone()
    gradients = []
    for number, batch in enumerate(batches):
        assert torch.equal(steps.full_parameters()["embedding.weight"], before), number
        alone = trainer(hybrid("sgd", sparse=sparse, dtype="float64", lr=1.0))
        alone.step(batch)
        gradients.append({name: each.clone() for name, each in alone.full_parameters().items()})
        steps.step(batch)
    start = trainer(of).full_parameters()
    mean = {name: sum(start[name] - each[name] for each in gradients) / 3 for name in start}
    norm = sum(float(each.square().sum()) for each in mean.values()) ** 0.5
    assert norm > 0.05
    for name, found in steps.full_parameters().items():
        assert torch.allclose(found, start[name] - mean[name] * 0.05 / norm, rtol=0, atol=1e-6), name


def test_steps_apart_leave_batches_that_accumulate_as_they_were() -> None:
    steps, batches = (
        trainer(config("sgd", accumulate=3), 1),
        prepare(config("sgd"), one_batch=False).batches(0),
    )
    assert steps.optimizers is not None
    before = {name: parameter.grad for name, parameter in steps.parameters().items()}
    with steps.optimizers.restarted():
        assert {parameter.grad for parameter in steps.parameters().values()} == {None}
        steps.step(next(batches))
        steps.step(next(batches))
    assert steps.optimizers.batches == 1
    assert all(parameter.grad is before[name] for name, parameter in steps.parameters().items())


def test_batches_of_a_loss_by_tokens_do_not_accumulate() -> None:
    values: dict[str, Any] = {"accumulate": 2, "batch_size": 10, "reduction": "tokens"}
    with pytest.raises(ConfigError, match=r"--accumulate 2 counts batches alike, .* use --batch-size 20"):
        prepare(hybrid("sgd", **values))
    prepare(hybrid("sgd", **values | {"reduction": "sum"}))
