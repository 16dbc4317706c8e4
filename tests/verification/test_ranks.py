"""Layouts of ranks: right ones are verified, and what is wrong is named, in runs and in prove."""

from collections.abc import Callable
from typing import Any
from warnings import catch_warnings

import pytest
import torch
from helpers.command_lines import HELPERS
from helpers.engine_runs import along_mesh, ended
from helpers.in_ranks import in_ranks
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.nn.functional import all_reduce as with_backward
from torch.nn.parallel import DistributedDataParallel

import dpexp
from dpexp.config.run_config import RunConfig
from dpexp.distributed.group import ProcessGroup
from dpexp.engine.prepare import prepare
from dpexp.verification.diagnosis.found import Found, located

# --- models, losses and optimizers ----------------------------------------------------------------------


class Net(nn.Sequential):
    """A batch norm without statistics uses those of a shard's rows in eval mode, too."""

    def __init__(self, normed: bool = False) -> None:
        norm = [nn.BatchNorm1d(8, track_running_stats=False)] if normed else []
        super().__init__(nn.Linear(6, 8), *norm, nn.Tanh(), nn.Linear(8, 4))


class OfGroup(nn.Linear):
    """Adds up its outputs over an explicit group of all ranks."""

    groups: list[Any] = []  # noqa: RUF012  a group cannot be copied

    def __init__(self) -> None:
        super().__init__(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.groups:
            self.groups.append(distributed.new_group([0, 1]))
        outputs: torch.Tensor = with_backward(super().forward(x), group=self.groups[0])
        return outputs


class Scaled(nn.Linear):
    """Returns its outputs and what scales them, which has no rows."""

    def __init__(self) -> None:
        super().__init__(6, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x) * self.scale.exp(), self.scale


class Writing(nn.Module):
    """Writes to a buffer and to rows of a table in its forward, and has a hook on a parameter."""

    def __init__(self, hook: str = "") -> None:
        super().__init__()
        self.table, self.fc = nn.Embedding(12, 5, max_norm=0.5), nn.Linear(5, 2)
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


class Dropping(nn.Module):
    """Draws a mask of its hidden numbers, with a ``seed`` from a generator of its own."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(6, 16), nn.Linear(16, 4)
        self.seed, self.rng = seed, None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.fc(x)
        if self.seed is not None and self.rng is None:
            self.rng = torch.Generator().manual_seed(self.seed)
        if self.training:
            hidden = hidden * (torch.rand(hidden.shape, generator=self.rng) > 0.5)
        outputs: torch.Tensor = self.head(hidden)
        return outputs


class Weights(nn.Sequential):
    """Has matrices only, as Muon takes them."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 16, bias=False), nn.Tanh(), nn.Linear(16, 4, bias=False))


def muon(parameters: Any, lr: float) -> torch.optim.Optimizer:
    """Orthogonalizes in bfloat16."""
    return torch.optim.Muon(parameters, lr=lr)


def of_first(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(outputs[0], targets)


def per_row(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The squares over the rows of all ranks, whose number they add up."""
    rows = torch.tensor(float(len(outputs)))
    if distributed.is_initialized():
        distributed.all_reduce(rows)
    return (outputs - targets).square().sum() / rows


def correlations(z: torch.Tensor, reduce: Callable[[torch.Tensor], Any]) -> torch.Tensor:
    """Barlow Twins' loss of the correlations over the rows of all ranks."""
    found, rows = z.T @ z, torch.tensor(float(len(z)), dtype=z.dtype)
    if distributed.is_initialized():
        found, rows = reduce(found), with_backward(rows)
    return (found / rows - torch.eye(len(found), dtype=found.dtype)).square().sum()


def loss(z: torch.Tensor, targets: Any) -> torch.Tensor:
    return correlations(z, with_backward)


def wrong_loss(z: torch.Tensor, targets: Any) -> torch.Tensor:
    """PyTorch's plain ``all_reduce`` has no backward."""
    return correlations(z, lambda found: distributed.all_reduce(found) or found)


def of_shards(parameters: Any) -> torch.optim.Optimizer:
    with catch_warnings(action="ignore"):  # of torch.jit
        from torch.distributed.optim import ZeroRedundancyOptimizer
    return ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=0.01)


# --- layouts --------------------------------------------------------------------------------------------


class NoSync(DistributedDataParallel):
    """Sends gradients in the last of two batches, which finds those of the first."""

    last = True

    def forward(self, *inputs: Any) -> Any:
        has_gradients = any(each.grad is not None for each in self.parameters())
        self.require_backward_grad_sync = has_gradients is self.last
        return super().forward(*inputs)


class FirstOnly(NoSync):
    last = False


def plain(model: nn.Module, mesh: Any) -> nn.Module:
    return DistributedDataParallel(model)


def seeded_alike(model: nn.Module, mesh: Any) -> nn.Module:
    torch.manual_seed(0)
    return DistributedDataParallel(model)


def no_sync(model: nn.Module, mesh: Any) -> nn.Module:
    return NoSync(model)


def wrong_no_sync(model: nn.Module, mesh: Any) -> nn.Module:
    return FirstOnly(model)


def sharded(model: nn.Module, mesh: Any) -> Any:
    return fully_shard(model, mesh=mesh)


def mixed(model: nn.Module, mesh: Any) -> Any:
    return fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))


def cast(model: nn.Module, mesh: Any) -> nn.Module:
    return DistributedDataParallel(model.bfloat16())


def warmed(model: nn.Module, mesh: Any) -> nn.Module:
    """Its forward is tried before there is an optimizer, so that the root's parameters stay gathered."""
    fully_shard(model, mesh=mesh)
    model(torch.randn(4, 6, dtype=next(model.parameters()).dtype))
    return model


def dry(model: nn.Module, mesh: Any) -> nn.Module:
    with torch.no_grad():
        return warmed(model, mesh)


def shifted(model: nn.Module, mesh: Any) -> nn.Module:
    """Changes a parameter while it lays the model out."""
    with torch.no_grad():
        next(model.parameters()).add_(0.01)
    return DistributedDataParallel(model)


class Merged(nn.Sequential):
    """In eval mode, its last layer has the weight with which it was evaluated first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            outputs: torch.Tensor = super().forward(x)
            return outputs
        if not hasattr(self, "merged"):
            self.merged = self[-1].weight.detach().clone()
        return nn.functional.linear(self[:-1](x), self.merged, self[-1].bias)


def merged(model: nn.Module, mesh: Any) -> nn.Module:
    model.__class__ = Merged
    return DistributedDataParallel(model)


# --- runs -----------------------------------------------------------------------------------------------

HERE = __file__
SHORT = {
    "model": f"{HERE}:Net",
    "data": "random:samples=32,shape=6",
    "batch_size": 12,
    "steps": 2,
    "warmup": 2,
}
WRITING: dict[str, Any] = {"data": "random:samples=32", "model": f"{HERE}:Writing"}
RUNS: dict[str, tuple[dict[str, Any], str]] = {
    "loss": ({"strategy": "ddp", "loss": f"{HERE}:loss"}, ""),
    "normed": ({"strategy": "ddp", "model": f"{HERE}:Net:normed=True"}, ""),
    "mixed": ({"layout": f"{HERE}:mixed"}, ""),
    "cast": ({"layout": f"{HERE}:cast", "dtype": "bfloat16"}, ""),
    "warmed": ({"layout": f"{HERE}:warmed"}, ""),
    "drops": ({"strategy": "ddp", "model": f"{HERE}:Dropping"}, ""),
    "dry": ({"layout": f"{HERE}:dry"}, ""),
    "reentrant checkpoints": (
        {"strategy": "ddp", "data": "random", "model": f"{HELPERS / 'odd_models.py'}:Checkpointed"},
        "",
    ),
    "wrong loss": (
        {"strategy": "ddp", "loss": f"{HERE}:wrong_loss"},
        "it is 1/2 of it: divided by the number of ranks once too often",
    ),
    "rows written by each rank": (
        WRITING | {"strategy": "ddp", "model": f"{HERE}:Writing:hook=half"},
        "parameter 'table.weight' is not the same on all ranks that have it",
    ),
    "clamped by a hook": (
        WRITING | {"strategy": "ddp", "model": f"{HERE}:Writing:hook=clamp"},
        "a hook on a parameter is not linear",
    ),
    "generators seeded alike": (
        {"strategy": "ddp", "model": f"{HERE}:Dropping:seed=3"},
        "the ranks draw the same random numbers: seed the generator of each differently",
    ),
}
"""Options, and the cause."""
NOTED: dict[str, tuple[dict[str, Any], str]] = {
    "written by shards": (
        WRITING | {"strategy": "fsdp", "block": ["fc"]},
        "each shard writes to mean, table.weight from its own rows: not compared",
    ),
    "an optimizer in bfloat16": (
        {"strategy": "fsdp", "model": f"{HERE}:Weights", "optimizer": f"{HERE}:muon"},
        "the optimizer (Muon) computes in bfloat16 inside: take another one to compare the layout",
    ),
    "seeded alike by the layout": (
        {"model": f"{HERE}:Dropping", "layout": f"{HERE}:seeded_alike"},
        "each drops the same of its rows: seed each rank differently",
    ),
    "of a group": (
        {"strategy": "ddp", "model": f"{HERE}:OfGroup"},
        "on a process group of 2 ranks, which a single device",
    ),
}
"""Options, and what the note says."""
CHECKED = ("written by shards", "seeded alike by the layout")
"""Those of them that are verified but for what the note says."""


def run(group: ProcessGroup, name: str) -> dict[str, Any]:
    """How a run ends."""
    options = SHORT | {"strategy": "custom", "phase_steps": 0} | (RUNS | NOTED)[name][0]
    if "layout" in options:
        options["mesh"] = f"dp={group.size}"
    config = RunConfig.from_dict(options)
    return ended(prepare(config, group=along_mesh(group, config)))


def result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = in_ranks(2, HERE, f"run:{name}")[f"run:{name}"][0]
    return found


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_verified_in_all_its_parts_or_says_what_is_wrong(name: str) -> None:
    found, words = result(name), RUNS[name][1]
    if words:
        assert words in found["fields"]["cause"]
        return
    assert found["error"] == ""
    of_run = found["verification"]
    assert [part["passed"] for part in (of_run, of_run["first_steps"], of_run["last_step"])] == [True] * 3


@pytest.mark.parametrize("name", NOTED)
def test_what_a_run_does_not_compare_is_named(name: str) -> None:
    found = result(name)
    assert (found["error"], found["verification"]["checked"]) == ("", name in CHECKED)
    assert NOTED[name][1] in found["verification"]["note"]


def test_dpexp_seeds_each_rank_differently() -> None:
    found = result("drops")
    assert found["error"] == ""
    assert found["verification"]["first_steps"]["passed"]
    assert "the same random numbers" not in found["verification"]["note"]


# --- proofs ---------------------------------------------------------------------------------------------

PROOFS: dict[str, tuple[Any, Any, dict[str, Any], tuple[Any, ...]]] = {
    "no_sync": (no_sync, Net, {"accumulate": 2}, ()),
    "shards of an optimizer": (plain, Net, {"optimizer": of_shards}, ()),
    "an output without rows": (plain, Scaled, {"loss": of_first}, ()),
    "a parameter as output": (sharded, Scaled, {"loss": of_first}, ()),
    "rows of all ranks": (plain, Net, {"loss": per_row, "reduction": "sum"}, ()),
    "wrong no_sync": (
        wrong_no_sync,
        Net,
        {"accumulate": 2},
        ("gradients", 2, "2", "not synchronized in the last batch of the window: is no_sync() left on?"),
    ),
    "of a group": (cast, OfGroup, {}, ("on a process group of 2 ranks",)),
    "shifted": (shifted, Net, {}, ("parameters", 0, "0", "as placed, they are not the model's")),
    "merged": (merged, Net, {}, ("outputs", 5, "", "in eval mode")),
}
"""A layout, a model, options; of a wrong one kind, step and module of the error, and words of its cause; of
one that cannot be compared words that say why."""


def proof(group: ProcessGroup, name: str) -> list[Any]:
    """The kind, the step, the module and the cause of the error of a proof; empty where it passes."""
    layout, model, options, _ = PROOFS[name]
    torch.manual_seed(0)
    batches = [(torch.randn(rows, 6), torch.randn(rows, 4)) for rows in (8, 5, 8, 5)]
    mesh = init_device_mesh("cpu", (group.size,), mesh_dim_names=("dp",))
    OfGroup.groups = [distributed.new_group([0, 1])]
    try:
        dpexp.prove(model(), layout, batches, mesh=mesh, **{"loss": nn.functional.mse_loss} | options)
    except dpexp.VerificationError as error:
        return [error.kind, error.step, error.module, error.cause]
    except dpexp.NotComparableError as error:
        return [str(error)]
    return []


@pytest.mark.parametrize("name", PROOFS)
def test_a_layout_is_verified_or_says_what_is_wrong(name: str) -> None:
    of_first_rank, of_second = in_ranks(2, HERE, f"proof:{name}")[f"proof:{name}"]
    assert of_first_rank == of_second
    assert bool(of_first_rank) == bool(PROOFS[name][3]), of_first_rank
    *where, words = PROOFS[name][3] or ("",)
    assert of_first_rank[:-1] == where
    assert words in "".join(of_first_rank[-1:])


def agreed(group: ProcessGroup) -> list[str]:
    """Rank 1 raises before its second gathering; afterwards all are together again."""

    def search() -> Found:
        group.together(lambda: 0)
        return Found(str(group.together(lambda: 1 // (1 - group.rank))))

    searches = {"the first module": search, "the next": lambda: Found("found")}
    return [located(what, each).text for what, each in searches.items()]


def test_an_error_while_ranks_locate_a_difference_is_described_by_all() -> None:
    (first, second), other = in_ranks(2, HERE, "agreed")["agreed"]
    assert [first, second] == other
    assert first.startswith("the first module: not located, rank 1 raised ZeroDivisionError: ")
    assert second == "found"
