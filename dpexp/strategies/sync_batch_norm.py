"""SyncBatchNorm: statistics of the rows of all ranks, which PyTorch computes on accelerators only."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpexp.config.errors import ConfigError
from dpexp.config.words import listed
from dpexp.devices import HOST, physical


class OneDeviceBatchNorm(_BatchNorm):
    """Takes inputs of any number of dimensions, as SyncBatchNorm does."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions, got {input.dim()}")


def synchronized(model: nn.Module) -> list[str]:
    """The names of the modules that compute statistics over all ranks."""
    return [name for name, module in model.named_modules() if isinstance(module, nn.SyncBatchNorm)]


def check_sync_batch_norm(model: nn.Module, device: torch.device) -> None:
    """Raises ConfigError for a model with SyncBatchNorm whose ranks compute on the host."""
    names = synchronized(model)
    if names and distributed.is_initialized() and physical(device) == HOST:
        raise ConfigError(
            f"SyncBatchNorm ({listed(names)}) computes on accelerators only, and the ranks are on the host: "
            "use nn.BatchNorm, of which each rank has the statistics of its rows"
        )


def on_one_device(model: nn.Module) -> nn.Module:
    """The model, whose SyncBatchNorm is a plain batch norm: all rows are on one device."""
    return _exchanged(model, nn.SyncBatchNorm, OneDeviceBatchNorm)


@contextmanager
def without_ranks(model: nn.Module) -> Iterator[None]:
    """Inside, the model computes as on one device."""
    on_one_device(model)
    try:
        yield
    finally:
        _exchanged(model, OneDeviceBatchNorm, nn.SyncBatchNorm)


def _exchanged(model: nn.Module, kind: type[nn.Module], other: type[nn.Module]) -> nn.Module:
    for module in model.modules():
        if isinstance(module, kind):
            cast(Any, module).__class__ = other
    return model
