"""``hybrid``: named submodules stay on the host, the rest goes to the accelerators.

    ids --> embedding on cpu --transfer--> linear on cuda:0 --> outputs             (one accelerator)
    ids --> embedding on cpu --transfer--> linear in DataParallel --> outputs       (several)

A batch needs a few rows of a large table: they are cheap to move, the table is not. ``--sparse`` makes its
gradient as small as those rows.
"""

from typing import Any

import torch
from torch import nn

from dpexp.config.errors import ConfigError
from dpexp.config.strategy_options import HybridOptions
from dpexp.devices import HOST, move, place
from dpexp.strategies.base import Devices, Needs
from dpexp.strategies.modules import Transfer, Wrapper, check_not_tied, matching, rewire, tables
from dpexp.strategies.placed import Placed
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
        check_not_tied(model, dict.fromkeys(hosts, HOST), devices[0] if devices else HOST, "--host")
        for name in hosts:
            module = model.get_submodule(name)
            if options.sparse and not tables(module):
                kind = type(module).__name__
                raise ConfigError(f"--sparse: host module '{name}' ({kind}) has no embedding; use --dense")
            for table in tables(module):
                table.sparse = options.sparse

    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        """Wrap every part in its stage, in place."""
        hosts = matching(model, self.options.host, "--host")
        device = devices[0] if devices else HOST

        def wrap(name: str, child: nn.Module) -> nn.Module:
            if name in hosts:
                return HostStage(place(child, HOST), device, timer)
            place(child, device)
            if len(devices) > 1 and list(child.parameters()):
                child = data_parallel_module(child, devices, self.backend, timer)
            return Stage(child, "dense", device, timer)

        rewire(model, hosts, wrap, device)
        used = (HOST, *(each for each in devices if each != HOST))
        return Placed(model, HOST, device, used, timer=timer, forward_phase="")


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
