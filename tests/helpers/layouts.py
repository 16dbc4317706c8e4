"""Layouts of Blocks as users write them, and some that are refused, for ``--layout layouts.py:NAME``."""

import os
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


# --- layouts that are wrong ---


class EndsTheProcess(torch.Tensor):
    """Whoever asks whether it is a DTensor, as the diagnosis of a module does, ends the process."""

    @property
    def placements(self) -> Any:
        os._exit(9)


class Ending(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (super().forward(inputs) / 2).as_subclass(EndsTheProcess)


class Continuing(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs.as_subclass(torch.Tensor))


def ends_when_located(model: Any, devices: list[torch.device]) -> nn.Module:
    model.block1.__class__, model.block2.__class__ = Ending, Continuing
    return model
