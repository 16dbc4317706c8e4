"""Shards: what a process has of each parameter, and how full tensors are read and written."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from dpexp import tensors


class Shards:
    """Here of one process, which has every parameter in full.

    Its methods may communicate: every rank must call them in the same order. A ``name`` is that of a
    parameter in the model as written, a ``tensor`` the parameter, its gradient, or what an optimizer keeps
    of it in the same shape. ``full_shapes`` are the shapes of full tensors by name, where they are not those
    of the parameters; ``units`` the module with which FSDP gathers a parameter, by the parameter's name.
    """

    full_shapes: Mapping[str, torch.Size] = MappingProxyType({})
    units: Mapping[str, str] = MappingProxyType({})

    def full_tensor(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The full tensor, as in DTensor, of which this process has a shard."""
        return tensor.detach()

    def rows(self, name: str, tensor: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Rows ``(n, ...)`` of the full tensor, by ascending ids ``(n,)``; dense and on the host."""
        return rows_of(self.full_tensor(name, tensor), ids)

    def load_full_tensor(self, name: str, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Write the full tensor ``value``, or this process's shard of it, to ``tensor``."""
        tensor.detach().copy_(value)

    def norm(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """The norm of a full gradient, as a scalar."""
        return tensors.norm(gradient)

    def total_norm(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The norm of the full gradients together, as a scalar on the device of the first."""
        norms = [self.norm(name, gradient) for name, gradient in gradients.items()]
        return tensors.norm(torch.stack([norm.to(norms[0].device) for norm in norms]))


class DTensorShards(Shards):
    """A parameter may be a ``DTensor``, of which each rank has a shard; others are the same on every rank."""

    def full_tensor(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        return full(tensor.detach())

    def norm(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        return full(super().norm(name, gradient))

    def load_full_tensor(self, name: str, tensor: torch.Tensor, value: torch.Tensor) -> None:
        from torch.distributed.tensor import DTensor, distribute_tensor

        tensor = tensor.detach()
        if isinstance(tensor, DTensor):
            value, mesh = value.to(tensor.device), tensor.device_mesh
            # every rank has the value, and needs no other's
            sharded = distribute_tensor(value, mesh, tensor.placements, src_data_rank=None)
            tensor.to_local().copy_(sharded.to_local())
        else:
            tensor.copy_(value)


def rows_of(tensor: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """These rows of a dense or sparse tensor, dense and on the host."""
    tensor, ids = tensor.detach(), ids.to(tensor.device)
    found = tensor.coalesce().index_select(0, ids).to_dense() if tensor.is_sparse else tensor[ids]
    return found.cpu()


def full_output(tensor: Any) -> torch.Tensor:
    """The rows of this rank, as a plain tensor; every rank that has a part of it must call this.

    A DTensor is gathered along the dimensions of its mesh that split no rows. What functional collectives
    return has arrived: PyTorch waits only where an operator reads it, and neither a view nor a pickle does.
    """
    if hasattr(tensor, "placements"):
        from torch.distributed.tensor import Replicate

        from dpexp.distributed.device_mesh import dimensions_of

        kept = [
            placement if dimension.role == "rows" else Replicate()
            for dimension, placement in zip(dimensions_of(tensor.device_mesh), tensor.placements, strict=True)
        ]
        tensor = tensor.redistribute(placements=kept).to_local()
    if hasattr(tensor, "trigger_wait"):
        arrived = tensor.trigger_wait()
        tensor = tensor if tensor.requires_grad else arrived  # which is in no graph
    return tensor  # type: ignore[no-any-return]


def full(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, gathered from all ranks where it is a ``DTensor``."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
