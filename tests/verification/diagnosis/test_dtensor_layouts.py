"""Layouts of DTensors, as frameworks ship them: what their modules return is located, and named."""

import functools
from typing import Any

import pytest
import torch
from in_ranks import in_ranks
from planted import SGD
from planted import proof_result as proof
from torch import distributed, nn
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from dpexp.config.mesh import Mesh
from dpexp.data.batch import Batch
from dpexp.devices import HOST
from dpexp.distributed.group import ProcessGroup
from dpexp.strategies.custom import Parallelize, lay_out
from dpexp.timing import Timer
from dpexp.verification.diagnosis.agreement import Agreement


class Net(nn.Module):
    """``first`` and ``last`` are split over ranks; what is between them gets and returns DTensors."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 8), nn.Sequential(nn.Tanh()), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.middle(self.first(x)))


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * 1.5


def split(model: nn.Module, mesh: Any) -> nn.Module:
    plan = {"first": ColwiseParallel(use_local_output=False), "last": RowwiseParallel()}
    return parallelize_module(model, mesh["tp"], plan)


def scaled(model: Any, mesh: Any) -> nn.Module:
    model.middle[0] = Scaled()
    return split(model, mesh)


class Order(nn.Module):
    """The rows by expert, and how many each expert gets; of ranks each has those of some rows."""

    rank, size = 0, 1

    def forward(self, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        own = torch.arange(len(chosen)).chunk(self.size)[self.rank]
        return own[chosen[own].argsort(stable=True)], chosen[own].bincount(minlength=3)


class Routed(nn.Module):
    """A mixture of experts: each row goes to the one that the router prefers."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.order, self.expert = nn.Linear(6, 3), Order(), nn.Linear(6, 4)
        self.together = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        best, chosen = self.router(x).softmax(-1).max(-1)
        order, _ = self.order(chosen)
        made = self.expert(x[order]) * best[order, None]
        return self.together(torch.zeros(len(x), 4, dtype=x.dtype).index_add(0, order, made))


class Sum(torch.autograd.Function):
    """Over all ranks; each has the gradient of the sum."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return all_reduce(x, "sum", distributed.group.WORLD).clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


class Summed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Sum.apply(x)


def routed(model: Any, mesh: Any, *, synchronized: tuple[str, ...] = ("router", "expert")) -> nn.Module:
    """Each rank computes the rows of some tokens; gradients of these modules are summed."""
    model.order.rank, model.order.size = mesh.get_rank(), mesh.size()
    model.together = Summed()
    for name in synchronized:
        for parameter in model.get_submodule(name).parameters():
            parameter.register_hook(lambda gradient: Sum.apply(gradient))
    return model  # type: ignore[no-any-return]


def router_apart(model: Any, mesh: Any) -> nn.Module:
    """As torchtitan had it: the gradient of the router is that of a rank's tokens."""
    return routed(model, mesh, synchronized=("expert",))


LAYOUTS: dict[str, Parallelize] = {
    "split": split,
    "scaled": scaled,
    "routed": routed,
    "router apart": router_apart,
}


OF_ROUTED = (routed, router_apart)


def batches(*rows: int) -> list[Batch]:
    torch.manual_seed(0)
    return [Batch((torch.randn(each, 6),), torch.randn(each, 4), each, each) for each in rows]


def proof_result(group: ProcessGroup, layout: str, trains: bool = True) -> str:
    """The cause of a failure; empty for a layout that is right."""
    torch.manual_seed(1)
    mesh = group.device_mesh(HOST)
    model = Routed() if LAYOUTS[layout] in OF_ROUTED else Net()
    optimizer = SGD if trains else None
    return proof(
        model,
        lambda model: lay_out(LAYOUTS[layout], model, mesh, (HOST,), Timer(), group),
        batches(6, 5),
        optimizer=optimizer,
        group=group,
    ).cause


def of_tp(group: ProcessGroup) -> ProcessGroup:
    """The same ranks along tp."""
    return ProcessGroup(Mesh.parse(f"tp={group.size}"))


def trained(group: ProcessGroup, layout: str) -> str:
    return proof_result(of_tp(group), layout)


def evaluated(group: ProcessGroup, layout: str) -> str:
    return proof_result(of_tp(group), layout, trains=False)


def agreed(group: ProcessGroup) -> list[str]:
    """Rank 1 raises before its second gathering; afterwards all are together again."""
    ranks = Agreement(group)

    def part() -> str:
        ranks.all_gather(lambda: 0)
        return str(ranks.all_gather(lambda: 1 // (1 - group.rank)))

    return [ranks.text_of("the first module", part), ranks.text_of("the next", lambda: "found")]


CASES = (
    *(f"trained:{layout}" for layout in ("split", "scaled")),
    *(f"trained:{layout}" for layout in ("routed", "router apart")),
    *("evaluated:split", "evaluated:scaled", "agreed"),
)


@functools.cache
def started() -> dict[str, list[Any]]:
    return in_ranks(2, __file__, *CASES)


def of_ranks(case: str) -> Any:
    """What a case gives, which is the same on all ranks."""
    first, second = started()[case]
    assert first == second
    return first


@pytest.mark.parametrize("case", ["trained", "evaluated"])
def test_a_right_layout_of_dtensors_passes(case: str) -> None:
    assert of_ranks(f"{case}:split") == ""


@pytest.mark.parametrize("case", ["trained", "evaluated"])
def test_a_module_that_returns_a_dtensor_is_compared_as_a_whole(case: str) -> None:
    assert "of module 'middle.0': it is 1.5 times" in of_ranks(f"{case}:scaled")


def test_an_error_while_ranks_locate_a_difference_is_described_by_all() -> None:
    first, second = of_ranks("agreed")
    assert first.startswith("the first module: not located, rank 1 raised ZeroDivisionError: ")
    assert second == "found"


def test_rows_that_a_layout_splits_over_ranks_are_compared_together() -> None:
    assert of_ranks("trained:routed") == ""
    apart = of_ranks("trained:router apart").removeprefix("step 1 (6 rows): gradients (router.")
    assert "; the first gradient in backward order that differs is of parameter 'router." in apart
    assert "first output" not in apart
    assert "; each rank has a part of it: the sum over the ranks that share rows is missing" in apart
