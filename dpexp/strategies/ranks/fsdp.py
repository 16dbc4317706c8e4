"""``fsdp``: FSDP2's ``fully_shard``, one process (rank) per device, each with a shard of every parameter.

    rank 0: rows 0-14  --all-gather block--> forward --free--> ... --all-gather--> backward --+
                                                                                              | reduce-scatter
    rank 1: rows 15-29 --all-gather block--> forward --free--> ... --all-gather--> backward --+

A rank keeps its rows of each parameter, of its gradient and of the optimizer's state; it has the full
parameters of a block only while the block computes. Blocks with a tied parameter are gathered together.
Data, weights and ranks without rows are as in ``ddp``.

Source: Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data parallel", 2023.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from dpexp.config.alike import listed
from dpexp.config.errors import ConfigError
from dpexp.config.strategies.fsdp import FsdpOptions
from dpexp.devices import HOST, place
from dpexp.strategies.base import Devices, Needs, Strategy
from dpexp.strategies.modules.hooks import check_no_hooks
from dpexp.strategies.modules.submodules import matching
from dpexp.strategies.modules.tables import EmbeddingTable
from dpexp.strategies.placed import Placed
from dpexp.strategies.ranks.ddp import RowWeightedSync
from dpexp.strategies.shards import DTensorShards
from dpexp.timing import Timer


class UnitShards(DTensorShards):
    """Each rank has its rows of every parameter; ``units`` are gathered and freed together."""

    def __init__(self, units: Mapping[str, str]) -> None:
        self.units = units


class TimedCollective:
    """What FSDP2 calls to gather parameters or to reduce and scatter gradients: the same, timed."""

    def __init__(self, timer: Timer, device: torch.device) -> None:
        self.timer, self.device = timer, device

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def timed(self, name: str, start: Callable[..., Any], *tensors: torch.Tensor, **options: Any) -> Any:
        """The work of a collective, whose end a recorded step waits for."""
        with self.timer.phase(name, self.device):
            work = start(*tensors, **options)
            if self.timer.is_recording and work is not None:
                work.wait()
        return work


class AllGather(TimedCollective):
    """The shards of all ranks as full parameters, before a forward and again before a backward."""

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, **options: Any) -> Any:
        is_backward = torch._C._current_graph_task_id() != -1
        name = "backward all-gather" if is_backward else "all-gather"
        return self.timed(name, _collective("all_gather"), output_tensor, input_tensor, **options)


class ReduceScatter(TimedCollective):
    """The mean of the gradients of all ranks, of which each gets its shard."""

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, **options: Any) -> Any:
        start = _collective("reduce_scatter")
        return self.timed("reduce-scatter", start, output_tensor, input_tensor, **options)


def _collective(name: str) -> Callable[..., Any]:
    """The collective of one tensor, which torch 2.13 has renamed."""
    older = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}[name]
    found: Callable[..., Any] = getattr(torch.distributed, f"{name}_single", None) or getattr(
        torch.distributed, older
    )
    return found


class _RefusesGradients(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operators that autograd runs inside raise ConfigError, however it was called."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch._C._current_graph_task_id() != -1:
            raise ConfigError(
                "fsdp frees the weights of a block after its forward, and this forward computes gradients "
                "(torch.autograd.grad, say), which needs them again: use ddp, which keeps them"
            )
        return func(*args, **(kwargs or {}))


class Fsdp(Strategy):
    """Each block is gathered and freed by itself; the parameters outside of blocks belong to the root."""

    needs = Needs(devices=False)
    options: FsdpOptions

    def blocks(self, model: nn.Module) -> list[str]:
        """The names of the submodules to shard. Raises ConfigError for one that the model does not have.

        A child that changes its input in place is left to the root, since FSDP2 refuses that of a block.
        """
        names = matching(model, self.options.block, "--block") if list(model.children()) else ()
        blocks = {name: model.get_submodule(name) for name in names}
        is_named = self.options.block != FsdpOptions.block
        return [
            name
            for name, each in blocks.items()
            if list(each.parameters()) and (is_named or not _begins_in_place(each))
        ]

    def prepare(self, model: nn.Module, devices: Devices) -> None:
        self.blocks(model)
        check_no_hooks(model, "fsdp")
        scalars = [name for name, each in model.named_parameters() if not (is_lazy(each) or each.dim())]
        if scalars:
            raise ConfigError(
                f"fsdp splits parameters by their rows, and {listed(scalars)} is a scalar: make it a vector "
                "of one number (torch.ones(1)), or use ddp"
            )
        names = [
            name for name, each in model.named_modules() if isinstance(each, EmbeddingTable) and each.sparse
        ]
        if names and not self.config.eval:
            raise ConfigError(
                f"fsdp reduces and scatters dense gradients, and those of {listed(names)} are sparse: "
                "make them with sparse=False, or use ddp, or hybrid with --sparse --shard-embedding"
            )

    @contextmanager
    def trying(self, model: nn.Module, inputs: Any) -> Iterator[None]:
        with _RefusesGradients():  # type: ignore[no-untyped-call]
            yield

    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        from torch.distributed.fsdp import (
            FSDPModule,
            fully_shard,
        )  # half a second, which a launcher need not wait

        device = devices[0] if devices else HOST
        blocks = self.blocks(model)
        place(model, device)
        groups = groups_of_tied(model, blocks)
        units = units_of(model, groups)
        mesh = self.group.device_mesh(device)
        if mesh is not None:
            for together in groups:
                fully_shard(together, mesh=mesh, reshard_after_forward=True)
            fully_shard(model, mesh=mesh, reshard_after_forward=True)
            gather: Any = AllGather(timer, device)
            reduce: Any = ReduceScatter(timer, device)
            for module in (each for each in model.modules() if isinstance(each, FSDPModule)):
                module.set_custom_all_gather(gather)
                module.set_custom_reduce_scatter(reduce)
        sync = RowWeightedSync(self.group.dp_size)
        return Placed(model, device, device, (device,), sync, UnitShards(units), timer=timer)


def _begins_in_place(block: nn.Module) -> bool:
    """Whether the first layer of a block works in place: that of ``Sequential(Dropout(inplace=True), …)``."""
    while isinstance(block, nn.Sequential) and len(block):
        block = next((each for each in block if not isinstance(each, nn.Flatten | nn.Identity)), block[0])
    return bool(getattr(block, "inplace", False))


def units_of(model: nn.Module, groups: Sequence[Sequence[nn.Module]]) -> dict[str, str]:
    """{parameter: the block it is gathered with}; tied ones as ``a, b``, and empty for the root."""
    names = {module: name for name, module in model.named_modules()}
    found: dict[nn.Parameter, str] = {}
    for group in groups:
        unit = ", ".join(names[module] for module in group)
        found |= {each: unit for module in group for each in module.parameters() if each not in found}
    return {name: found.get(each, "") for name, each in model.named_parameters()}


def groups_of_tied(model: nn.Module, blocks: Sequence[str]) -> list[list[nn.Module]]:
    """The blocks, each in a list with those that share a parameter with it, as FSDP2 wants tied modules.

    A block that shares a parameter with the rest of the model is left to it.
    """
    modules = [model.get_submodule(name) for name in blocks]
    inside = {each for module in modules for each in module.modules()}
    rest = {
        parameter
        for module in model.modules()
        if module not in inside
        for parameter in module.parameters(recurse=False)
    }
    groups: list[tuple[list[nn.Module], set[nn.Parameter]]] = []
    for module in modules:
        parameters = set(module.parameters())
        tied = [group for group in groups if group[1] & parameters]
        groups = [group for group in groups if group not in tied]
        together = [each for group in tied for each in group[0]]
        groups.append(([*together, module], parameters.union(*(group[1] for group in tied))))
    return [group for group, parameters in groups if not parameters & rest]
