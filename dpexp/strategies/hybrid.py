"""``hybrid``: named submodules stay on the host, the rest goes to the accelerators.

    ids --> embedding on cpu --transfer--> linear on cuda:0 --> outputs             (one accelerator)
    ids --> embedding on cpu --transfer--> linear in DataParallel --> outputs       (several)

A table of many rows fits the host's memory, and a batch needs only a few of its rows: moving those
rows is cheap, moving the table is not. ``--sparse`` makes its gradient as small as the rows touched.
``--pipeline`` splits the batch in two, so that the host embeds the second half while the first is
in the dense part:

    host     |embed 0|embed 1|
    device           |dense 0|dense 1|
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from dpexp import parallel
from dpexp.config import ConfigError, HybridOptions
from dpexp.devices import HOST, label, move, on, physical, place
from dpexp.strategies.base import Needs, Placed, Strategy
from dpexp.strategies.data_parallel import data_parallel_module
from dpexp.strategies.wrapping import Wrapper, check_no_overlap, replace, submodule
from dpexp.timing import Timer

MICRO_BATCHES = 2
"""Parts of a pipelined batch. Two gradients add up to the same bits in either order; three need not."""

_CONTAINERS = (nn.ModuleList, nn.ModuleDict)


class Hybrid(Strategy):
    """Host modules by name (default ``embedding``); every other module on the accelerators."""

    name = "hybrid"
    needs = Needs(devices=True)

    @property
    def options(self) -> HybridOptions:
        """The strategy's own options."""
        assert isinstance(self.config.options, HybridOptions)
        return self.config.options

    def prepare(self, model: nn.Module) -> None:
        check_no_overlap(self.options.host, "--host")
        for name in self.options.host:
            _, _, module = submodule(model, name, "--host")
            tables = [part for part in module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)]
            if self.options.sparse and not tables:
                raise ConfigError(
                    f"--sparse: host module '{name}' ({type(module).__name__}) has no embedding; "
                    "leave out --sparse"
                )
            for table in tables:
                table.sparse = self.options.sparse

    def place(self, model: nn.Module, devices: Sequence[torch.device], timer: Timer) -> Placed:
        device = devices[0] if devices else HOST
        stages = Stages(tuple(devices), timer)
        self._lay(model, "", stages)
        module = Pipelined(model, device) if self.options.pipeline else model
        return Placed(module, HOST, device, (HOST, *(each for each in devices if each != HOST)))

    def _lay(self, module: nn.Module, prefix: str, stages: Stages) -> None:
        """Wrap the children of a module that itself holds a host module; what it owns goes to the device."""
        stages.take(module)
        for key, child in module.named_children():
            name = f"{prefix}{key}"
            if name in self.options.host:
                replace(module, key, OnHost(place(child, HOST), stages))
            elif isinstance(child, _CONTAINERS) or any(
                each.startswith(f"{name}.") for each in self.options.host
            ):
                self._lay(child, f"{name}.", stages)
            else:
                replace(module, key, Dense(self._dense(child, stages), stages))

    def _dense(self, child: nn.Module, stages: Stages) -> nn.Module:
        place(child, stages.device)
        if len(stages.devices) < 2:
            return child
        return data_parallel_module(child, stages.devices, self.config, stages.timer)


class Stages:
    """What the wrapped modules of one model share: devices, timer, and one lock a stage.

    The locks let one part of a pipelined batch into a stage at a time, and cost nothing otherwise.
    """

    def __init__(self, devices: tuple[torch.device, ...], timer: Timer) -> None:
        self.devices = devices
        self.device = devices[0] if devices else HOST
        self.timer = timer
        self.host_lock = threading.RLock()
        self.device_lock = threading.RLock()

    def take(self, module: nn.Module) -> None:
        """Move the parameters and buffers that the module itself owns, not its children's, to the device."""
        children, module._modules = module._modules, {}
        try:
            place(module, self.device)
        finally:
            module._modules = children


class OnHost(Wrapper):
    """A module on the host whose outputs go on to the accelerator."""

    def __init__(self, module: nn.Module, stages: Stages) -> None:
        super().__init__()
        self.module = module
        self.transfer = Transfer(stages)
        self.stages = stages

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        inputs, kwargs = move(inputs, HOST), move(kwargs, HOST)
        with self.stages.host_lock, self.stages.timer.phase("embedding", HOST):
            outputs = self.module(*inputs, **kwargs)
        return self.transfer(outputs)


class Transfer(nn.Module):
    """Host to accelerator: same shapes, another device. Its gradient travels back the same way."""

    def __init__(self, stages: Stages) -> None:
        super().__init__()
        self.stages = stages
        place(self, stages.device)

    def forward(self, outputs: Any) -> Any:
        with self.stages.timer.phase("transfer", self.stages.device):
            return move(outputs, self.stages.device, non_blocking=True)

    def extra_repr(self) -> str:
        return f"to {label(self.stages.device)}"


class Dense(Wrapper):
    """A module on the accelerators; inputs that are still on the host are brought along."""

    def __init__(self, module: nn.Module, stages: Stages) -> None:
        super().__init__()
        self.module = module
        self.stages = stages

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        device = self.stages.device
        with self.stages.device_lock, self.stages.timer.phase("dense", device):
            if physical(device) != HOST:
                inputs, kwargs = move(inputs, device), move(kwargs, device)
            return self.module(*inputs, **kwargs)


class Pipelined(Wrapper):
    """Runs the parts of a batch through the model side by side; the stages' locks put them in a pipeline."""

    def __init__(self, module: nn.Module, output_device: torch.device) -> None:
        super().__init__()
        self.module = module
        self.output_device = output_device

    def forward(self, *inputs: Any) -> Any:
        batches = parallel.scatter(inputs, [HOST] * MICRO_BATCHES)
        if len(batches) == 1:
            return self.module(*batches[0])
        outputs = parallel.parallel_apply([self._one] * len(batches), batches, devices=[HOST] * len(batches))
        return parallel.gather(outputs, self.output_device)

    def _one(self, *inputs: Any) -> Any:
        with on(HOST, None):  # a part of the batch, not a replica
            return self.module(*inputs)
