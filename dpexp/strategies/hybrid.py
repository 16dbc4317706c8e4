"""``hybrid``: named submodules stay on the host, the rest goes to the accelerators.

    ids --> embedding on cpu --transfer--> linear on cuda:0 --> outputs             (one accelerator)
    ids --> embedding on cpu --transfer--> linear in DataParallel --> outputs       (several)

A batch needs a few rows of a large table: they are cheap to move, the table is not. ``--sparse`` makes its
gradient as small as those rows. Under torchrun each rank has one accelerator, with the dense part in
DistributedDataParallel. Every rank has the tables on its host and ``TableSync`` all-reduces their gradients.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import distributed, nn

from dpexp.config.errors import ConfigError
from dpexp.config.strategy_options import DdpOptions, HybridOptions
from dpexp.data.batch import Batch
from dpexp.devices import HOST, move, place
from dpexp.strategies.base import Devices, Needs
from dpexp.strategies.modules import (
    Transfer,
    Wrapper,
    check_not_tied,
    matching,
    named_parameters,
    rewire,
    tables,
)
from dpexp.strategies.placed import GradientSync, Placed
from dpexp.strategies.ranks import ddp_module
from dpexp.strategies.replicas import Replicating, data_parallel_module
from dpexp.timing import Timer


class Hybrid(Replicating):
    """Host modules by name (default ``embedding``); every other module on the accelerators."""

    needs = Needs(devices=True)
    options: HybridOptions

    def prepare(self, model: nn.Module, devices: Devices) -> None:
        """Set the tables sparse or dense. Raises ConfigError for host modules that are not there, or tied."""
        super().prepare(model, devices)
        options = self.options
        hosts = matching(model, options.host, "--host")
        if self.compile and len(devices) > 1:
            raise ConfigError(
                f"--compile: with {len(devices)} devices the dense part is replicated; give one device"
            )
        check_not_tied(model, dict.fromkeys(hosts, HOST), devices[0] if devices else HOST, "--host")
        for name in hosts:
            module = model.get_submodule(name)
            if options.sparse and not tables(module):
                kind = type(module).__name__
                raise ConfigError(f"--sparse: host module '{name}' ({kind}) has no embedding; use --dense")
            for table in tables(module):
                table.sparse = options.sparse

    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        """Wrap every part in its stage, in place; over ranks the whole in DistributedDataParallel."""
        hosts = matching(model, self.options.host, "--host")
        device = devices[0] if devices else HOST

        def wrap(name: str, child: nn.Module) -> nn.Module:
            if name in hosts:
                return HostStage(place(child, HOST), device, timer)
            place(child, device)
            if len(devices) < 2 or not list(child.parameters()):
                return Stage(self.compiled(child), "dense", device, timer)
            dense = data_parallel_module(child, devices, self.backend, timer)
            return Stage(dense, "dense", device, timer)

        rewire(model, hosts, wrap, device)
        used = (HOST, *(each for each in devices if each != HOST))
        placed = partial(Placed, input_device=HOST, output_device=device, devices=used, timer=timer)
        if not self.group.members:
            return placed(model, forward_phase="")
        prefixes = tuple(f"{host}." for host in hosts)
        tables_of_hosts = {
            name: each for name, each in named_parameters(model).items() if name.startswith(prefixes)
        }
        sync = TableSync(self.group.dp_size, tables_of_hosts, timer)
        module = ddp_module(model, device, timer, DdpOptions(), excluded=tables_of_hosts.values())
        return placed(module, gradient_sync=sync)


class Stage(Wrapper):
    """A module on its device, to which it moves its inputs; timed as ``phase``."""

    def __init__(self, module: nn.Module, phase: str, device: torch.device, timer: Timer) -> None:
        super().__init__()
        self.module = module
        self.phase, self.device, self.timer = phase, device, timer

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Inputs ``(rows, …)`` from any device; outputs on this one."""
        with self.timer.phase(self.phase, self.device):
            inputs, kwargs = move(inputs, self.device), move(kwargs, self.device)
            return self.module(*inputs, **kwargs)


class HostStage(Stage):
    """A module on the host, and the transfer of its outputs to the device."""

    def __init__(self, module: nn.Module, device: torch.device, timer: Timer) -> None:
        super().__init__(module, "embedding", HOST, timer)
        self.transfer = Transfer(device, timer)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Inputs ``(rows, …)``; outputs on the device to which they are transferred."""
        return self.transfer(super().forward(*inputs, **kwargs))


class TableSync(GradientSync):
    """All-reduces the gradients of the ``tables``, the parameters of host modules; a sparse one by its rows.

    DistributedDataParallel synchronizes all others.
    """

    def __init__(self, dp_size: int, tables: Mapping[str, nn.Parameter], timer: Timer) -> None:
        super().__init__(dp_size)
        self._tables, self._timer = tables, timer

    def backward(self, loss: torch.Tensor, batch: Batch) -> None:
        """``loss`` is a scalar; then the mean of the tables' gradients over the ranks."""
        super().backward(loss, batch)
        with self._timer.phase("allreduce_tables", HOST):
            for name, table in self._tables.items():
                if table.requires_grad:
                    assert table.grad is not None, f"table {name} got no gradient"
                    gradient = table.grad.coalesce() if table.grad.is_sparse else table.grad
                    distributed.all_reduce(gradient)
                    table.grad = gradient / self.dp_size
