"""Layouts of ranks: right ones are verified, and what is wrong is named, in runs and in prove."""

import re
from collections.abc import Callable
from functools import cache
from typing import Any
from warnings import catch_warnings

import pytest
import torch
from engine_runs import ended
from in_ranks import in_ranks
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.nn.functional import all_reduce as with_backward
from torch.nn.parallel import DistributedDataParallel

import dpexp
from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.data.rng import kept_globals, seed_globals
from dpexp.distributed.group import ProcessGroup
from dpexp.engine.prepare import prepare
from dpexp.verification.result import VerificationError

# --- models, losses and optimizers ----------------------------------------------------------------------


class Net(nn.Sequential):
    """A batch norm without statistics uses those of a shard's rows in eval mode, too."""

    def __init__(self, normed: bool = False) -> None:
        norm = [nn.BatchNorm1d(8, track_running_stats=False)] if normed else []
        super().__init__(nn.Linear(6, 8), *norm, nn.Tanh(), nn.Linear(8, 4))


def tracked() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))


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


# --- layouts --------------------------------------------------------------------------------------------


class Micro(DistributedDataParallel):
    """Sends gradients in the last of two batches, which finds those of the first."""

    last = True

    def forward(self, *inputs: Any) -> Any:
        has_gradients = any(each.grad is not None for each in self.parameters())
        self.require_backward_grad_sync = has_gradients is self.last
        return super().forward(*inputs)


class FirstOnly(Micro):
    last = False


def no_sync(model: nn.Module, mesh: Any) -> nn.Module:
    return Micro(model)


def wrong_no_sync(model: nn.Module, mesh: Any) -> nn.Module:
    return FirstOnly(model)


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


def plain(model: nn.Module, mesh: Any) -> nn.Module:
    return DistributedDataParallel(model)


def shifted(model: nn.Module, mesh: Any) -> nn.Module:
    """Changes a parameter while it lays the model out."""
    with torch.no_grad():
        next(model.parameters()).add_(0.01)
    return DistributedDataParallel(model)


def sharded(model: nn.Module, mesh: Any) -> Any:
    return fully_shard(model, mesh=mesh)


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


def of_shards(parameters: Any) -> torch.optim.Optimizer:
    with catch_warnings(action="ignore"):  # of torch.jit
        from torch.distributed.optim import ZeroRedundancyOptimizer
    return ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=0.01)


# --- runs -----------------------------------------------------------------------------------------------

HERE = __file__
RUNS: dict[str, dict[str, Any]] = {
    "loss": {"strategy": "ddp", "loss": f"{HERE}:loss"},
    "wrong loss": {"strategy": "ddp", "loss": f"{HERE}:wrong_loss"},
    "normed": {"strategy": "ddp", "model": f"{HERE}:Net:normed=True"},
    "own buffers": {"strategy": "fsdp", "model": f"{HERE}:tracked"},
    "of a group": {"strategy": "ddp", "model": f"{HERE}:OfGroup"},
    "mixed": {"layout": f"{HERE}:mixed"},
    "cast": {"layout": f"{HERE}:cast", "dtype": "bfloat16"},
    "warmed": {"layout": f"{HERE}:warmed"},
    "dry": {"layout": f"{HERE}:dry"},
}
SHORT = {
    "model": f"{HERE}:Net",
    "data": "random:samples=32,shape=6",
    "batch_size": 12,
    "steps": 2,
    "warmup": 2,
}


def run(group: ProcessGroup, name: str) -> dict[str, Any]:
    options = SHORT | {"strategy": "custom", "phase_steps": 0} | RUNS[name]
    if "layout" in options:
        options["mesh"] = f"dp={group.size}"
    prepared = prepare(RunConfig.from_dict(options), group=group)
    with kept_globals():
        seed_globals(group.rank)
        return ended(prepared)


def proof(group: ProcessGroup, name: str) -> str:
    layout, model, options = PROOFS[name]
    torch.manual_seed(0)
    batches = [(torch.randn(rows, 6), torch.randn(rows, 4)) for rows in (8, 5, 8, 5)]
    mesh = init_device_mesh("cpu", (group.size,), mesh_dim_names=("dp",))
    OfGroup.groups = [distributed.new_group([0, 1])]
    try:
        dpexp.prove(model(), layout, batches, mesh=mesh, **{"loss": nn.functional.mse_loss} | options)
    except (VerificationError, ConfigError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


PROOFS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "no_sync": (no_sync, Net, {"accumulate": 2}),
    "wrong no_sync": (wrong_no_sync, Net, {"accumulate": 2}),
    "of a group": (cast, OfGroup, {}),
    "shards of an optimizer": (plain, Net, {"optimizer": of_shards}),
    "shifted": (shifted, Net, {}),
    "an output without rows": (plain, Scaled, {"loss": of_first}),
    "a parameter as output": (sharded, Scaled, {"loss": of_first}),
    "rows of all ranks": (plain, Net, {"loss": per_row, "reduction": "sum"}),
    "merged": (merged, Net, {}),
}


@cache
def started() -> dict[str, list[Any]]:
    return in_ranks(2, HERE, *(f"run:{name}" for name in RUNS), *(f"proof:{name}" for name in PROOFS))


def result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = started()[f"run:{name}"][0]
    return found


RIGHT = [
    "loss",
    "normed",
    "mixed",
    "cast",
    "warmed",
    "dry",
]


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_run_is_verified_in_all_its_parts(name: str) -> None:
    found = result(name)
    assert found["error"] == ""
    of_run = found["verification"]
    assert [part["passed"] for part in (of_run, of_run["first_steps"], of_run["last_step"])] == [True] * 3


def test_the_error_of_buffers_that_each_rank_has_for_itself_is_that_of_its_own() -> None:
    found = result("own buffers")["verification"]
    for part in (found, found["first_steps"], found["last_step"]):
        assert part["passed"]
        assert part["buffer_error"] <= part["tolerance"]


def test_a_loss_that_adds_up_over_ranks_without_a_backward_is_found() -> None:
    message = result("wrong loss")["error"]
    assert "step 1 (12 rows): gradients (" in message
    assert "it is 1/2 of it: divided by the number of ranks once too often" in message


def test_windows_of_accumulation_are_judged_after_their_last_batch() -> None:
    assert started()["proof:no_sync"] == ["", ""]
    for message in started()["proof:wrong no_sync"]:
        assert message.startswith("VerificationError: ")
        assert "step 2 (5 rows): gradients (" in message


def test_a_collective_on_an_explicit_group_is_named_and_nothing_is_verified() -> None:
    found = result("of a group")
    words = "on a process group of 2 ranks, which a single device"
    assert (found["error"], found["verification"]["checked"]) == ("", False)
    assert words in found["verification"]["note"]
    for message in started()["proof:of a group"]:
        assert message.startswith("ConfigError: prove: nothing could be compared: ")
        assert words in message


RIGHT = ("shards of an optimizer", "an output without rows", "a parameter as output", "rows of all ranks")


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_layout_is_proven(name: str) -> None:
    assert started()[f"proof:{name}"] == ["", ""]


def test_what_a_layout_keeps_from_one_evaluation_to_the_next_is_found() -> None:
    for message in started()["proof:merged"]:
        assert re.search(r"in eval mode\): outputs differ .* of the model itself", message)


def test_a_parameter_that_the_layout_changes_is_named_before_any_step() -> None:
    for message in started()["proof:shifted"]:
        assert re.search(r"parameters \(0\.(bias|weight)\) differ by .*: as placed, they are not", message)
