"""Layouts of Blocks as users write them, right ones and wrong ones, for ``--layout layouts.py:NAME``."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from dpexp.parallel import DataParallel


def tensor_parallel(model: nn.Module, mesh: Any) -> nn.Module:
    return parallelize_module(model, mesh["tp"], {"block1": ColwiseParallel(), "block2": RowwiseParallel()})


def two_dimensional(model: nn.Module, mesh: Any) -> nn.Module:
    fully_shard(tensor_parallel(model, mesh), mesh=mesh["dp"])
    return model


def data_parallel(model: nn.Module, mesh: Any) -> nn.Module:
    return DistributedDataParallel(model)


def without_sync(model: nn.Module, mesh: Any) -> nn.Module:
    """Wrong: every rank keeps the gradients of its own rows."""
    return model


def two_devices(model: nn.Module, devices: list[torch.device]) -> nn.Module:
    """Right, in one process: the model stays where it is."""
    assert len(devices) == 2
    return model


def replicated(model: nn.Module, devices: list[torch.device]) -> nn.Module:
    return DataParallel(model.to(devices[0]), devices)


# --- layouts that are refused ---


def one_parameter(model: nn.Module) -> nn.Module:
    return model


def returns_nothing(model: nn.Module, devices: Any) -> None:
    pass


def raises(model: nn.Module, devices: Any) -> nn.Module:
    return {"block1": model}["block9"]


def renamed(model: Any, devices: Any) -> nn.Module:
    model.other = model.block1
    del model.block1
    return nn.Sequential(model)


def cut(model: Any, devices: Any) -> nn.Module:
    model.block1.weight = nn.Parameter(model.block1.weight[:10])
    return model  # type: ignore[no-any-return]


# --- shards made by hand ---


class _Copy(torch.autograd.Function):
    """Megatron's f: the identity in the forward, an all-reduce in the backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        grad = grad.contiguous()
        distributed.all_reduce(grad, group=ctx.group)
        return grad, None


class _Reduce(torch.autograd.Function):
    """Megatron's g: an all-reduce in the forward, the identity in the backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        x = x.clone()
        distributed.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        return grad, None


class Megatron(nn.Module):
    """block2 by columns and block3 by rows, as plain tensors: block2's input needs ``_Copy``."""

    def __init__(self, model: Any, mesh: Any, copies: bool) -> None:
        super().__init__()
        self.block1, self.block2, self.block3 = model.block1, model.block2, model.block3
        self.group, self.copies = mesh.get_group("tp"), copies
        rank, size = mesh.get_local_rank("tp"), mesh["tp"].size()
        self.sharded = {"block2.weight": 0, "block2.bias": 0, "block3.weight": 1}
        self.piece = lambda tensor, dim: tensor.chunk(size, dim)[rank].clone()
        for name, dim in self.sharded.items():
            block, key = name.split(".")
            full = getattr(getattr(self, block), key)
            setattr(getattr(self, block), key, nn.Parameter(self.piece(full.detach(), dim)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block1(x)
        x = _Copy.apply(x, self.group) if self.copies else x  # type: ignore[no-untyped-call]
        x = nn.functional.linear(self.block2(x), self.block3.weight)
        return _Reduce.apply(x, self.group) + self.block3.bias  # type: ignore[no-any-return,no-untyped-call]

    def full_tensor(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name not in self.sharded:
            return tensor
        pieces = [torch.empty_like(tensor) for _ in range(self.group.size())]
        distributed.all_gather(pieces, tensor.contiguous(), group=self.group)
        return torch.cat(pieces, self.sharded[name])

    def local_tensor(self, name: str, full_tensor: torch.Tensor) -> torch.Tensor:
        return self.piece(full_tensor, self.sharded[name]) if name in self.sharded else full_tensor


def by_hand(model: nn.Module, mesh: Any) -> nn.Module:
    return Megatron(model, mesh, copies=True)


def without_copy(model: nn.Module, mesh: Any) -> nn.Module:
    """Wrong: the gradient of block1 misses what the other ranks' columns of block2 add to it."""
    return Megatron(model, mesh, copies=False)


# --- a pipeline: each rank has some of the modules ---


class _ToNext(torch.autograd.Function):
    """Sends its input to rank 1, and returns the outputs that rank 1 computes of it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        distributed.send(x.detach(), 1)
        ctx.like = x
        outputs = torch.empty(len(x), 20, dtype=x.dtype)
        distributed.broadcast(outputs, src=1)
        return outputs

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        received = torch.empty_like(ctx.like)
        distributed.recv(received, 1)
        return received


class _FromPrevious(torch.autograd.Function):
    """Receives the input of this stage, and sends its gradient back."""

    @staticmethod
    def forward(ctx: Any, start: torch.Tensor) -> torch.Tensor:
        received = torch.empty(len(start), 20, dtype=start.dtype)
        distributed.recv(received, 0)
        return received

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        distributed.send(grad.contiguous(), 0)
        return None


class Stage(nn.Module):
    """Rank 0 has block1 and block2, rank 1 has block3; both return the outputs."""

    def __init__(self, model: Any, rank: int) -> None:
        super().__init__()
        self.rank = rank
        if rank == 0:
            self.block1, self.block2 = model.block1, model.block2
        else:
            self.block3 = model.block3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.rank == 0:
            return _ToNext.apply(self.block2(self.block1(x)))  # type: ignore[no-any-return,no-untyped-call]
        start = x.detach().requires_grad_(torch.is_grad_enabled())
        outputs: torch.Tensor = self.block3(_FromPrevious.apply(start))  # type: ignore[no-untyped-call]
        distributed.broadcast(outputs.detach().clone(), src=1)
        return outputs


def pipeline(model: nn.Module, mesh: Any) -> nn.Module:
    return Stage(model, mesh.get_rank())
