"""``fsdp``: FSDP2's ``fully_shard``, one process (rank) a device, each with a shard of every parameter.

    rank 0: rows 0-14  --all-gather block--> forward --free--> ... --all-gather--> backward --+
                                                                                              | reduce-scatter
    rank 1: rows 15-29 --all-gather block--> forward --free--> ... --all-gather--> backward --+

A rank keeps its rows of each parameter, of its gradient and of the optimizer's state; it has the full
parameters of a block only while the block computes. Blocks with a tied parameter are gathered together.
Data, weights and ranks without rows are as in ``ddp``.

Source: Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data parallel", 2023.
"""

from collections.abc import Sequence

import torch
from torch import nn

from dpexp.config import FsdpOptions
from dpexp.devices import HOST, place
from dpexp.strategies.base import Devices, Needs, Placed, Strategy
from dpexp.strategies.ddp import RowWeightedSync
from dpexp.strategies.hooks import check_no_hooks
from dpexp.strategies.submodules import matching
from dpexp.strategies.wrappers import Forward
from dpexp.timing import Timer


class ShardedSync(RowWeightedSync):
    """Parameters are ``DTensor``s, of which each rank has its rows."""

    def full_tensor(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        from torch.distributed.tensor import DTensor

        tensor = tensor.detach()
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def norm(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        return self.full_tensor("", super().norm(name, gradient))

    def load_full_tensor(self, name: str, tensor: torch.Tensor, value: torch.Tensor) -> None:
        from torch.distributed.tensor import DTensor, distribute_tensor

        tensor = tensor.detach()
        if isinstance(tensor, DTensor):
            sharded = distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements)
            tensor.to_local().copy_(sharded.to_local())
        else:
            tensor.copy_(value)


class Fsdp(Strategy):
    """Each block is gathered and freed by itself; the parameters outside of blocks belong to the root."""

    name = "fsdp"
    needs = Needs(devices=False)
    options: FsdpOptions

    def blocks(self, model: nn.Module) -> list[str]:
        """The names of the submodules to shard. Raises ConfigError for one that the model does not have."""
        names = matching(model, self.options.block, "--block") if list(model.children()) else ()
        return [name for name in names if list(model.get_submodule(name).parameters())]

    def prepare(self, model: nn.Module, devices: Devices) -> None:
        self.blocks(model)
        check_no_hooks(model, "fsdp")

    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard  # half a second, which a launcher need not wait

        device = devices[0] if devices else HOST
        blocks = self.blocks(model)
        place(model, device)
        if torch.distributed.is_initialized():
            mesh = init_device_mesh(device.type, (self.group.size,))
            for together in groups_of_tied(model, blocks):
                fully_shard(together, mesh=mesh, reshard_after_forward=True)
            fully_shard(model, mesh=mesh, reshard_after_forward=True)
        return Placed(Forward(model, timer), device, device, (device,), ShardedSync(self.group.size))


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
