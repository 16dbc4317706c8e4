"""Layouts of Blocks as users write them, and some that are refused, for ``--layout layouts.py:NAME``."""

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from dpexp.parallel import DataParallel


def tensor_parallel(model: nn.Module, mesh: Any) -> nn.Module:
    return parallelize_module(model, mesh["tp"], {"block1": ColwiseParallel(), "block2": RowwiseParallel()})


def two_dimensional(model: nn.Module, mesh: Any) -> nn.Module:
    fully_shard(tensor_parallel(model, mesh), mesh=mesh["dp"])
    return model


def sharded(model: nn.Module, mesh: Any) -> nn.Module:
    fully_shard(model, mesh=mesh)
    return model


def data_parallel(model: nn.Module, mesh: Any) -> nn.Module:
    return DistributedDataParallel(model)


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


def added(model: Any, devices: Any) -> nn.Module:
    model.extra = nn.Parameter(torch.zeros(1))
    return model  # type: ignore[no-any-return]


def cut(model: Any, devices: Any) -> nn.Module:
    model.block1.weight = nn.Parameter(model.block1.weight[:10])
    return model  # type: ignore[no-any-return]
