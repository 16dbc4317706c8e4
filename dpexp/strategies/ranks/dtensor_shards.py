"""Shards that are ``DTensor``s, as FSDP2 and tensor parallelism make them."""

import torch

from dpexp.strategies.shards import Shards


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
            sharded = distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements)
            tensor.to_local().copy_(sharded.to_local())
        else:
            tensor.copy_(value)


def full(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, gathered from all ranks where it is a ``DTensor``."""
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
