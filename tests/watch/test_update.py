"""An equal optimizer makes the loop's update, bit for bit, of whatever kind it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.in_ranks import in_ranks
from torch import nn, optim
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from dpexp.config.errors import NotComparableError
from dpexp.distributed.group import ProcessGroup
from dpexp.verification.compare import Difference
from dpexp.watch import equal, update
from dpexp.watch.ranks import LoopRanks
from dpexp.watch.shards import Shards, own

Held = dict[str, nn.Parameter]
Make = Callable[[Any], optim.Optimizer]

# --- optimizers of users ---


class Own(optim.Optimizer):
    def __init__(self, parameters: Any, lr: float = 0.1, **more: Any) -> None:
        super().__init__(parameters, {"lr": lr, **more})

    def pairs(self) -> Iterator[tuple[dict[str, Any], nn.Parameter]]:
        for group in self.param_groups:
            yield from ((group, each) for each in group["params"] if each.grad is not None)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        self.change()

    def change(self) -> None:
        raise NotImplementedError


class Lamb(Own):
    def change(self) -> None:
        for group, each in self.pairs():
            kept = self.state[each]
            kept["m"] = 0.9 * kept.get("m", torch.zeros_like(each)) + 0.1 * each.grad
            kept["v"] = 0.99 * kept.get("v", torch.zeros_like(each)) + 0.01 * each.grad**2
            way = kept["m"] / (kept["v"].sqrt() + 1e-6)
            norm, size = each.norm(), way.norm()
            trust = torch.where((norm > 0) & (size > 0), norm / size, torch.ones_like(norm))
            each.sub_(group["lr"] * trust * way)


class FactorsLarge(Own):
    """As some of Adafactor: of matrices with few rows or columns it takes the squares themselves."""

    def change(self) -> None:
        for group, each in self.pairs():
            squares = each.grad.square()
            if each.dim() == 2 and min(each.shape) >= 16:
                squares = torch.outer(squares.mean(1), squares.mean(0)) / squares.mean()
            each.sub_(group["lr"] * each.grad / squares.sqrt())


class KeepsShort(Own):
    def change(self) -> None:
        for group, each in self.pairs():
            kept = self.state[each].setdefault("m", torch.zeros_like(each, dtype=torch.bfloat16))
            each.sub_(kept.mul_(0.9).add_(each.grad), alpha=group["lr"])


class ReadsMarks(Own):
    def change(self) -> None:
        for group, each in self.pairs():
            each.sub_(each.grad, alpha=group["lr"] * getattr(each, "rate", 1.0))


class NormOfAll(Own):
    def change(self) -> None:
        norm = sum(each.grad.square().sum() for _, each in self.pairs()).sqrt()
        for group, each in self.pairs():
            each.sub_(group["lr"] * each.grad / norm)


class Estimates(Own):
    """As Prodigy: its rate grows with the way that all parameters have come, and is in the group."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, 1.0, d=1e-6, came=0.0, size=0.0)

    def change(self) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                start = self.state[each].setdefault("start", each.clone())
                group["came"] += group["d"] * float((each.grad * (start - each)).sum())
                group["size"] += group["d"] * float(each.grad.abs().sum())
            group["d"] = max(group["d"], group["came"] / group["size"])
            for each in group["params"]:
                each.sub_(group["lr"] * group["d"] * each.grad.sign())


class DrawsNoise(Own):
    def change(self) -> None:
        for group, each in self.pairs():
            each.sub_(group["lr"] * (each.grad + torch.randn_like(each)))


class Keeps(Own):
    """It steps what it keeps itself."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.kept = self.param_groups[0]["params"]

    def change(self) -> None:
        for each in self.kept:
            each.sub_(0.1 * each.grad)


# --- what steps ---


def model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Linear(6, 10), nn.Linear(10, 8), nn.LayerNorm(8), nn.Linear(8, 5, bias=False))
    return nn.Sequential(*layers).to(dtype)


def matrices() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 10, bias=False), nn.Linear(10, 8, bias=False))


def give_gradients(held: Held, step: int, without: str = "", is_low: bool = False) -> None:
    """``is_low``: as those of one row."""
    rng = torch.Generator().manual_seed(step)
    for name, each in held.items():
        numbers = torch.randn(each.shape, generator=rng).to(each.dtype)
        if is_low and each.dim() == 2:
            numbers = numbers[:, :1] * numbers[:1]
        if isinstance(each, DTensor):
            numbers = distribute_tensor(numbers, each.device_mesh, each.placements)
        each.grad = None if name == without else numbers


def own_gradients(held: Held) -> dict[str, torch.Tensor]:
    return {name: own(each.grad) for name, each in held.items() if each.grad is not None}


class Steps:
    """A loop of steps, each compared."""

    def __init__(self, optimizer: optim.Optimizer, module: nn.Module) -> None:
        self.optimizer, self.held = optimizer, dict(module.named_parameters())
        self.ranks = LoopRanks()
        self.shards = Shards.of(self.held, self.ranks)
        self.kind: equal.Kind | None = None

    def expected(self) -> update.Expected:
        some = self.optimizer, self.held
        self.kind = self.kind or equal.kind_of(*some, self.ranks)
        gradients = own_gradients(self.held)
        return update.expected(*some, gradients, self.kind, self.shards, self.ranks)

    def compared(self, expected: update.Expected) -> dict[str, Difference]:
        parts, noise = update.compared(expected, self.held)
        return replace(expected.kind.limits, noise=noise).judge("updates", 1, parts)

    def take(self, count: int = 3, **gradients: Any) -> list[dict[str, Difference]]:
        found = []
        for step in range(count):
            give_gradients(self.held, step, **gradients)
            expected = self.expected()
            self.optimizer.step()
            found.append(self.compared(expected))
        return found


def largest(found: list[dict[str, Difference]]) -> float:
    return max(each.apart for step in found for each in step.values())


def with_groups(parameters: Any) -> optim.Optimizer:
    some = list(parameters)
    groups = [{"params": some[:2], "lr": 0.3}, {"params": some[2:], "weight_decay": 0.0}]
    return optim.AdamW(groups, lr=torch.tensor(0.01), foreach=False)


ALONE: dict[str, Make] = {
    "sgd": lambda some: optim.SGD(some, 0.1),
    "momentum": lambda some: optim.SGD(some, 0.1, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda some: optim.SGD(some, 0.1, momentum=0.9, nesterov=True, maximize=True),
    "adam": lambda some: optim.Adam(some, amsgrad=True),
    "adamw": optim.AdamW,
    "adamw_foreach": lambda some: optim.AdamW(some, foreach=True),
    "adamw_fused": lambda some: optim.AdamW(some, fused=True, amsgrad=True),
    "adafactor": optim.Adafactor,
    "rmsprop": lambda some: optim.RMSprop(some, momentum=0.9, centered=True),
    "adagrad": lambda some: optim.Adagrad(some, lr_decay=0.1),
    "adadelta": optim.Adadelta,
    "adamax": optim.Adamax,
    "nadam": optim.NAdam,
    "radam": optim.RAdam,
    "rprop": optim.Rprop,
    "asgd": optim.ASGD,
    "lamb": Lamb,
    "groups": with_groups,
}
TOGETHER: dict[str, Make] = {"norm_of_all": NormOfAll, "estimates": Estimates}


@pytest.mark.parametrize("name", [*ALONE, *TOGETHER])
def test_update_of_an_equal_optimizer_has_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "BUNDLE", 300)
    steps = Steps((ALONE | TOGETHER)[name]((module := model()).parameters()), module)
    assert largest(steps.take(12 if name == "estimates" else 3)) == 0
    assert steps.kind is not None
    assert steps.kind.mixes == (name in TOGETHER)


def test_optimizer_that_treats_large_parameters_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "BUNDLE", 300)
    monkeypatch.setattr(equal, "SIDES", (32, 32, 8))
    module = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 40), nn.Linear(40, 50))
    assert largest(Steps(FactorsLarge(module.parameters()), module).take()) == 0


def test_muon_computes_in_bfloat16() -> None:
    steps = Steps(optim.Muon((module := matrices()).parameters()), module)
    assert largest(steps.take()) == 0
    assert steps.kind is not None
    assert steps.kind.limits.eps == torch.finfo(torch.bfloat16).eps
    assert steps.kind.magnifies == set(steps.held)


def test_sparse_gradients() -> None:
    module = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Embedding(20, 4, sparse=True))
    steps = Steps(optim.SparseAdam(module.parameters()), module)
    for number in range(3):
        sum(each(torch.tensor([number, 3])).square().sum() for each in module).backward()
        expected = steps.expected()
        steps.optimizer.step()
        steps.optimizer.zero_grad()
        assert largest([steps.compared(expected)]) == 0


def test_parameter_without_gradient_stays() -> None:
    steps = Steps(optim.AdamW((module := model()).parameters()), module)
    found = steps.take(without="1.weight")
    assert largest(found) == 0
    assert steps.expected().changed["1.weight"] == 0


def test_numbers_that_parameters_are_marked_with() -> None:
    steps = Steps(ReadsMarks((module := model()).parameters()), module)
    module[0].weight.rate = 0.5  # type: ignore[assignment]
    assert largest(steps.take(1)) == 0


def test_warm_up_from_zero_does_not_hide_that_an_optimizer_mixes() -> None:
    steps = Steps(NormOfAll((module := model()).parameters(), lr=0.0), module)
    steps.take(1)
    assert steps.kind is not None
    assert steps.kind.mixes


# --- wrong, and not comparable ---


@pytest.mark.parametrize("times", [0.5, 1.1, 0.0])
def test_another_rate_is_found(times: float) -> None:
    steps = Steps(optim.AdamW((module := model()).parameters(), lr=0.01, weight_decay=0), module)
    give_gradients(steps.held, 0)
    expected = steps.expected()
    steps.optimizer.param_groups[0]["lr"] *= times
    steps.optimizer.step()
    found = steps.compared(expected)
    for each in found.values():
        assert each.ratio > 1
        assert math.isclose(each.error, abs(1 - times), rel_tol=0.01)


def test_another_kernel_is_rounding() -> None:
    steps = Steps(optim.AdamW((module := model()).parameters(), lr=1e-4, fused=True), module)
    for step in range(5):
        give_gradients(steps.held, step)
        expected = steps.expected()
        steps.optimizer.param_groups[0]["fused"] = False
        steps.optimizer.step()
        steps.optimizer.param_groups[0]["fused"] = True
        assert all(each.ratio <= 1 and each.is_comparable for each in steps.compared(expected).values())


def test_rounding_of_bfloat16_hides_a_small_update() -> None:
    steps = Steps(optim.AdamW((module := model(torch.bfloat16)).parameters(), lr=0.01), module)
    assert largest(steps.take()) == 0
    give_gradients(steps.held, 9)
    expected = steps.expected()
    steps.optimizer.param_groups[0]["lr"] = 0.011
    steps.optimizer.step()
    found = steps.compared(expected)
    assert not found["0.weight"].is_comparable
    assert found["0.weight"].ratio <= 1


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (DrawsNoise, "draws random numbers"),
        (Keeps, "'kept' of type list"),
        (lambda some: Lamb([*some], no_decay={id(each) for each in some}), "by their ids"),
    ],
)
def test_not_comparable(make: Make, why: str) -> None:
    steps = Steps(make([*(module := model()).parameters()]), module)
    before = [each.detach().clone() for each in module.parameters()]
    with pytest.raises(NotComparableError, match=why):
        steps.take(1)
    assert all(map(torch.equal, before, module.parameters()))


def test_optimizer_that_mixes_with_another_model() -> None:
    module, other = model(), model()
    for each in other.parameters():
        each.grad = torch.ones_like(each)
    steps = Steps(NormOfAll([*module.parameters(), *other.parameters()]), module)
    with pytest.raises(NotComparableError, match="mixes parameters, among them others"):
        steps.take(1)


def test_nothing_of_the_loop_changes() -> None:
    steps = Steps(optim.Adam((module := model()).parameters()), module)
    steps.take(1)
    give_gradients(steps.held, 1)
    everything = lambda: [  # noqa: E731
        each.clone()
        for parameter in module.parameters()
        for each in (parameter.detach(), parameter.grad, *steps.optimizer.state[parameter].values())
    ]
    before = everything()
    steps.kind = None
    steps.expected()
    assert all(map(torch.equal, before, everything()))
    assert len(steps.optimizer.state) == len(steps.held)


def test_state_that_begins_in_a_narrower_type() -> None:
    steps = Steps(KeepsShort((module := model()).parameters()), module)
    assert largest(steps.take()) == 0
    assert update.narrower_state(steps.optimizer, steps.held) == []
    steps.optimizer.state[steps.held["0.bias"]]["size"] = torch.ones(10).half()
    assert len(update.narrower_state(steps.optimizer, steps.held)) == 1


# --- shards ---


def sharded(matrices_only: bool = False) -> nn.Module:
    module = matrices() if matrices_only else model()
    if not matrices_only:
        module.append(nn.Linear(5, 1))  # of which the second rank has no row
    for each in module:
        fully_shard(each)
    return fully_shard(module)


def of_shards(_: ProcessGroup, name: str) -> Any:
    module = sharded(matrices_only=name.startswith("muon"))
    makes = ALONE | TOGETHER | {"muon": optim.Muon, "muon_of_a_row": optim.Muon}
    steps = Steps(makes[name](module.parameters()), module)
    try:
        found = steps.take(is_low=name == "muon_of_a_row")
    except NotComparableError as why:
        return str(why)
    assert steps.kind is not None
    worst = max((each for step in found for each in step.values()), key=lambda each: each.ratio)
    is_own = all(each.shape == own(steps.held[name]).shape for name, each in steps.expected().after.items())
    return {"ratio": worst.ratio, "apart": worst.apart, "full": sorted(steps.kind.whole), "own": is_own}


@pytest.mark.parametrize("name", ["adamw", "momentum", "adamw_fused", "adagrad"])
def test_elementwise_optimizer_steps_shards(name: str) -> None:
    (by_rank,) = in_ranks(2, __file__, f"of_shards:{name}").values()
    assert by_rank == [{"ratio": 0.0, "apart": 0.0, "full": [], "own": True}] * 2


@pytest.mark.parametrize("name", ["muon", "muon_of_a_row", "lamb"])
def test_optimizer_of_full_tensors_steps_these(name: str) -> None:
    (by_rank,) = in_ranks(2, __file__, f"of_shards:{name}").values()
    for each in by_rank:
        assert isinstance(each, dict), each
        assert each["ratio"] <= 1
        assert each["own"]
        assert {"0.weight", "1.weight"} <= set(each["full"])


def test_mixed_shards_are_not_compared() -> None:
    (by_rank,) = in_ranks(2, __file__, "of_shards:norm_of_all").values()
    assert by_rank == ["NormOfAll mixes parameters, among them shards of several ranks"] * 2


def wrong_on_one_rank(_: ProcessGroup) -> list[float]:
    module = sharded()
    steps = Steps(optim.AdamW(module.parameters(), lr=0.01), module)
    give_gradients(steps.held, 0)
    expected = steps.expected()
    steps.optimizer.step()
    if steps.ranks.rank:
        own(steps.held["0.weight"]).sub_(1e-3)
    return [steps.compared(expected)["0.weight"].ratio]


def test_shard_that_is_wrong_on_one_rank() -> None:
    (by_rank,) = in_ranks(2, __file__, "wrong_on_one_rank").values()
    assert by_rank[0] == [0]
    assert by_rank[1][0] > 1


def split_along_columns(_: ProcessGroup) -> Any:
    module, mesh = matrices(), init_device_mesh("cpu", (2,))
    for each, placement in zip(module, (Shard(1), Replicate()), strict=True):
        each.weight = nn.Parameter(distribute_tensor(each.weight.detach(), mesh, [placement]))
    steps = Steps(Lamb(module.parameters()), module)
    worst = max(each.ratio for step in steps.take() for each in step.values())
    assert steps.kind is not None
    return [worst <= 1, sorted(steps.kind.whole)]


def test_columns_and_replicas() -> None:
    (by_rank,) = in_ranks(2, __file__, "split_along_columns").values()
    assert by_rank == [[True, ["0.weight", "1.weight"]]] * 2
