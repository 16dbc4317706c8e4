"""The cases: layouts that ``dpexp.prove`` judges over ranks, and runs.

Each is right, or has one bug: a function or a class of a file here, whose docstring says what is wrong.
``@layout`` makes it a layout that is verified; ``@run`` a layout, or a model, of runs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from pieces import Ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import dpexp
from dpexp.parallel import DataParallel

HERE = Path(__file__).resolve().parent

# --- layouts ---------------------------------------------------------------------------------------------

FAMILIES = ("tensor_parallel", "data_parallel", "sharded", "pipeline", "mixed")
BATCHES = (12, 7, 12)
"""Their rows: 12 divide evenly by 2, 3 and 4, and 7 by none of them."""


@dataclass(frozen=True)
class Layout:
    """A layout along dimensions of a mesh; of a wrong one ``module`` and ``words`` must be named."""

    family: str
    name: str
    model: str
    dimensions: tuple[str, ...]
    parallelize: Callable[[nn.Module, Any], nn.Module]
    module: str
    words: str

    def worlds(self) -> tuple[int, ...]:
        """The numbers of ranks, or of devices, over which it is laid."""
        return (2, 3) if len(self.dimensions) == 1 else (4,)

    def prove(self, count: int) -> None:
        """Prove it over so many devices, or ranks, each of which calls this. Raises VerificationError."""
        torch.manual_seed(0)
        model = getattr(import_module("nets"), self.model)()
        batches = [model.example(rows, torch.Generator().manual_seed(rows)) for rows in BATCHES]
        where: dict[str, Any] = {"devices": [torch.device("cpu", index) for index in range(count)]}
        if self.dimensions != ("devices",):
            sizes = (count,) if len(self.dimensions) == 1 else (2, 2)
            where = {"mesh": init_device_mesh("cpu", sizes, mesh_dim_names=self.dimensions)}
        dpexp.prove(model, self.parallelize, batches, nn.functional.mse_loss, torch.optim.Adam, **where)


_LAYOUTS: list[Layout] = []


def layout(*dimensions: str, model: str = "Block", module: str = "", words: str = "") -> Callable[..., Any]:
    """Register the function that follows: it gets the model and ``Ranks`` of each dimension, or the devices.

    It changes the model, or returns another module in its place. One without ``module`` is right.
    """

    def register(change: Callable[..., nn.Module | None]) -> Callable[[nn.Module, Any], nn.Module]:
        def parallelize(model: nn.Module, mesh: Any) -> nn.Module:
            targets = [mesh] if dimensions == ("devices",) else [Ranks(mesh, each) for each in dimensions]
            changed = change(model, *targets)
            return model if changed is None else changed

        parallelize.change = change  # type: ignore[attr-defined]
        family, name = change.__module__, change.__name__
        _LAYOUTS.append(Layout(family, name, model, dimensions, parallelize, module, words))
        return parallelize

    return register


def layouts(family: str) -> list[Layout]:
    """The layouts of a family, in the order of its file."""
    import_module(family)
    return [each for each in _LAYOUTS if each.family == family]


# --- runs ------------------------------------------------------------------------------------------------

KINDS = ("run_dtype", "late", "hidden", "training_mode", "rare_paths", "edge_rows", "the_model")
RIGHT = ("right_models", "right_layouts")
SHORT: dict[str, Any] = {
    "batch_size": 10,
    "data": "random:samples=34",
    "warmup": 1,
    "steps": 12,
    "phase_steps": 0,
    "threads": 1,
}
"""Every run: an epoch is batches of 10, 10, 10 and 4 rows, and two devices or ranks share each batch."""


def host(model, devices):
    return model


def replicas(model, devices):
    return DataParallel(model, devices)


def ranks(model, mesh):
    return DistributedDataParallel(model)


def shards(model, mesh):
    return fully_shard(model, mesh=mesh)


def alike(model, mesh):
    return model


BASES: dict[str, Any] = {
    "host": (host, {}),
    "replicas": (replicas, {"virtual": 2}),
    "ranks": (ranks, {"mesh": "dp=2"}),
    "shards": (shards, {"mesh": "dp=2"}),
    "alike": (alike, {"mesh": "tp=2"}),
}
"""Layouts of strategy ``custom``."""

STRATEGIES: dict[str, dict[str, Any]] = {
    "single": {},
    "whole": {"virtual": 2},
    "functional": {"virtual": 2},
    "block": {"virtual": 2, "block": ("second",)},
    "hybrid": {"virtual": 2, "host": ("first",)},
    "place": {"virtual": 2, "place": ("second=cpu:1",)},
    "ddp": {},
    "fsdp": {},
}


@dataclass(frozen=True)
class Run:
    """A run with these options; a wrong one must end as a failed verification that says these ``words``."""

    kind: str
    name: str
    over: str
    options: dict[str, Any]
    is_right: bool
    words: str

    @property
    def is_of_ranks(self) -> bool:
        """Whether two ranks run it, and not one process."""
        return self.over in ("ranks", "shards", "alike", "ddp", "fsdp")

    def __str__(self) -> str:
        return f"{self.kind}.{self.name}/{self.over}"


_RUNS: list[Run] = []


def run(
    *over: str, model: str = "nets.Net", right: bool = False, words: str = "", **options: Any
) -> Callable[..., Any]:
    """Register the model class that follows in runs over these layouts, or the function ``(model)`` over one.

    The function changes the model that is laid out, or lays it out itself: then it returns the module.
    """

    def register(case: Any) -> Any:
        kind, name = case.__module__, case.__name__
        for each in over:
            given = {"strategy": "custom" if each in BASES else each, "model": f"{HERE / kind}.py:{name}"}
            if each in BASES and isinstance(case, type):
                given["layout"] = f"{__file__}:{each}"
            elif each in BASES:
                file, _, of_file = model.partition(".")
                given |= {"layout": given["model"], "model": f"{HERE / file}.py:{of_file}"}
            given |= SHORT | (BASES[each][1] if each in BASES else STRATEGIES[each]) | options
            _RUNS.append(Run(kind, name, each, given, right or kind in RIGHT, words))
        return case if isinstance(case, type) else _laid_out(case, over[0])

    return register


def _laid_out(change: Callable[[nn.Module], nn.Module | None], over: str) -> Callable[..., nn.Module]:
    """The layout ``over`` of what ``change`` makes of the model."""
    base = BASES[over][0]

    def in_ranks(model: nn.Module, mesh: Any) -> nn.Module:
        changed = change(model)
        return base(model, mesh) if changed is None else changed

    def in_one_process(model: nn.Module, devices: list[torch.device]) -> nn.Module:
        return in_ranks(model, devices)

    laid_out = in_ranks if over in ("ranks", "shards", "alike") else in_one_process
    laid_out.change = change  # type: ignore[attr-defined]
    return laid_out


def runs(*kinds: str) -> list[Run]:
    """The runs of these kinds, in the order of their files."""
    for kind in kinds:
        import_module(kind)
    return [each for kind in kinds for each in _RUNS if each.kind == kind]
