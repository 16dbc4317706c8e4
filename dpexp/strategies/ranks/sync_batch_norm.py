"""SyncBatchNorm: batch statistics of the rows of all ranks, on the host too.

PyTorch's computes on accelerators only, and on any other device raises an error as soon as there is a process
group. ``on_host_ranks`` replaces it by ``HostSyncBatchNorm``, which computes the same with all-reduces, and
``on_one_device`` by a plain batch norm, which computes the same where all rows are on one device.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed.nn.functional  # as in dpexp.distributed: before a group exists
from torch import distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm


class OneDeviceBatchNorm(_BatchNorm):
    """Takes inputs of any number of dimensions, as SyncBatchNorm does."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions, got {input.dim()}")


class HostSyncBatchNorm(OneDeviceBatchNorm):
    """``nn.SyncBatchNorm`` of ranks on the host; its ``process_group`` is None for all ranks."""

    process_group: Any

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not (self.training and distributed.is_initialized()):
            return super().forward(input)
        self._check_input_dim(input)
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        dims, shape = [0, *range(2, x.dim())], [1, -1] + [1] * (x.dim() - 2)
        rows = torch.full((1,), x.numel() / x.size(1), dtype=x.dtype)
        sums = self._sum_of_ranks(torch.cat([x.sum(dims), rows]))
        mean, count = sums[:-1] / sums[-1], sums[-1]
        centered = x - mean.view(shape)
        variance = self._sum_of_ranks(centered.square().sum(dims)) / count
        self._keep(mean.detach(), variance.detach(), float(count))
        normal = centered * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        outputs: torch.Tensor = normal.to(input.dtype)
        return outputs

    def _sum_of_ranks(self, tensor: torch.Tensor) -> torch.Tensor:
        """Its gradient is the sum of those of all ranks."""
        group = self.process_group or distributed.group.WORLD
        all_reduce: Any = distributed.nn.functional.all_reduce
        summed: torch.Tensor = all_reduce(tensor, group=group)
        return summed

    def _keep(self, mean: torch.Tensor, variance: torch.Tensor, count: float) -> None:
        """Update the running statistics, whose variance is that of a sample."""
        if self.num_batches_tracked is None or self.running_mean is None or self.running_var is None:
            return
        self.num_batches_tracked.add_(1)
        momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        sample = variance * (count / max(count - 1, 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(sample.to(self.running_var.dtype), momentum)


SYNCHRONIZED = (nn.SyncBatchNorm, HostSyncBatchNorm)


def synchronized(model: nn.Module) -> list[str]:
    """The names of the modules that compute statistics over all ranks."""
    return [name for name, module in model.named_modules() if isinstance(module, SYNCHRONIZED)]


def on_host_ranks(model: nn.Module) -> nn.Module:
    """The model, of which ranks on the host can compute the SyncBatchNorm."""
    return _as_class(model, HostSyncBatchNorm)


@contextmanager
def converted_on_host() -> Iterator[None]:
    """Inside, PyTorch's conversion makes batch norms that ranks on the host can compute."""
    convert: Any = nn.SyncBatchNorm.convert_sync_batchnorm

    def converted(module: nn.Module, process_group: Any = None) -> nn.Module:
        return on_host_ranks(convert(module, process_group))

    nn.SyncBatchNorm.convert_sync_batchnorm = converted  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.SyncBatchNorm.convert_sync_batchnorm = convert  # type: ignore[method-assign]


def on_one_device(model: nn.Module) -> nn.Module:
    """The model, whose SyncBatchNorm knows no other ranks."""
    return _as_class(model, OneDeviceBatchNorm)


def _as_class(model: nn.Module, other: type[nn.Module]) -> nn.Module:
    for module in model.modules():
        if isinstance(module, SYNCHRONIZED):
            cast(Any, module).__class__ = other
    return model


@contextmanager
def without_ranks(model: nn.Module) -> Iterator[None]:
    """Inside, the model computes as on one device."""
    classes = {module: type(module) for module in model.modules() if isinstance(module, SYNCHRONIZED)}
    on_one_device(model)
    try:
        yield
    finally:
        for module, original in classes.items():
            cast(Any, module).__class__ = original
