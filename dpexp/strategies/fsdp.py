"""``fsdp``: FSDP2's ``fully_shard``, one process (rank) a device, each with a part of every parameter.

    rank 0: rows 0-14  --gather block--> forward --free--> ... --gather block--> backward --+
                                                                                            | reduce-scatter
    rank 1: rows 15-29 --gather block--> forward --free--> ... --gather block--> backward --+

A rank keeps its rows of each parameter, of its gradient and of the optimizer's state; a block's parameters
are whole on a rank only while the block computes. Data, weights by rows and ranks without rows are as in
``ddp``.

FSDP2 is imported where it is used: it takes half a second, and every launcher of ranks would wait for it.

Source: Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data parallel", 2023.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from dpexp.config import FsdpOptions
from dpexp.devices import HOST, place
from dpexp.strategies.base import Needs, Placed, Strategy
from dpexp.strategies.ddp import RowWeightedSync
from dpexp.strategies.wrappers import Forward, check_no_overlap, submodule
from dpexp.timing import Timer

CHILDREN = "*"


class Sharded(RowWeightedSync):
    """Parameters are ``DTensor``s, of which each rank holds its rows."""

    def full_tensor(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        from torch.distributed.tensor import DTensor

        tensor = tensor.detach()
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def load_full_tensor(self, name: str, tensor: torch.Tensor, value: torch.Tensor) -> None:
        from torch.distributed.tensor import DTensor, distribute_tensor

        tensor = tensor.detach()
        if isinstance(tensor, DTensor):
            there = distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements)
            tensor.to_local().copy_(there.to_local())
        else:
            tensor.copy_(value)


class Fsdp(Strategy):
    """Each block is a unit that is gathered and freed by itself; what is in no block belongs to the root."""

    name = "fsdp"
    needs = Needs(devices=False)

    def blocks(self, model: nn.Module) -> tuple[str, ...]:
        """The names of the submodules that are units. Raises ConfigError for one that is not there."""
        options = self.config.options
        assert isinstance(options, FsdpOptions)
        if options.block == (CHILDREN,):
            return tuple(name for name, child in model.named_children() if list(child.parameters()))
        for name in options.block:
            submodule(model, name, "--block")
        check_no_overlap(options.block, "--block")
        return options.block

    def prepare(self, model: nn.Module, devices: Sequence[torch.device]) -> None:
        self.blocks(model)

    def place(self, model: nn.Module, devices: Sequence[torch.device], timer: Timer) -> Placed:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        device = devices[0] if devices else HOST
        blocks = self.blocks(model)
        place(model, device)
        if torch.distributed.is_initialized():
            mesh = init_device_mesh(device.type, (self.group.size,))
            for unit in (*map(model.get_submodule, blocks), model):
                fully_shard(unit, mesh=mesh, reshard_after_forward=True)
        return Placed(Forward(model, timer), device, device, (device,), Sharded(self.group.size))
