"""``hybrid``: named submodules stay on the host, the rest goes to the accelerators.

    ids --> embedding on cpu --transfer--> linear on cuda:0 --> outputs             (one accelerator)
    ids --> embedding on cpu --transfer--> linear in DataParallel --> outputs       (several)

A batch needs a few rows of a large table: they are cheap to move, the table is not. ``--sparse`` makes its
gradient as small as those rows. ``--pipeline`` splits the batch in two, so that the host embeds the second
half while the device computes the first:

    host     |embed 0|embed 1|
    device           |dense 0|dense 1|

Under torchrun each rank has one accelerator, with the dense part in DistributedDataParallel. Every rank has
the tables on its host and their gradients are all-reduced; with --shard-embedding it has some of the rows.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from dpexp import parallel
from dpexp.config import ConfigError, DdpOptions, HybridOptions
from dpexp.devices import HOST, move, physical, place, running_on
from dpexp.strategies.base import Devices, Needs, Placed
from dpexp.strategies.data_parallel import Replicating, data_parallel_module
from dpexp.strategies.ddp import ddp_module
from dpexp.strategies.embedding_tables import TableSync, check_shardable, shard
from dpexp.strategies.submodules import check_not_tied, matching, rewire
from dpexp.strategies.wrappers import Transfer, Wrapper
from dpexp.timing import Timer

MICRO_BATCHES = 2
"""Parts of a pipelined batch. Two gradients add up to the same bits in either order; three need not."""


class Hybrid(Replicating):
    """Host modules by name (default ``embedding``); every other module on the accelerators."""

    name = "hybrid"
    needs = Needs(devices=True)
    options: HybridOptions

    def prepare(self, model: nn.Module, devices: Devices) -> None:
        super().prepare(model, devices)
        options, hosts = self.options, matching(model, self.options.host, "--host")
        if self.config.compile and len(devices) > 1:
            raise ConfigError(
                f"--compile: with {len(devices)} devices the dense part is replicated; give one device"
            )
        if options.shard_embedding and not self.group.members:
            raise ConfigError("--shard-embedding splits the rows over ranks: start them with torchrun")
        if options.shard_embedding and options.pipeline:
            raise ConfigError(
                "--shard-embedding and --pipeline: the ranks must look up in one order; give one of the two"
            )
        if devices:
            check_not_tied(model, hosts, "--host")
        for name in hosts:
            module = model.get_submodule(name)
            if options.shard_embedding:
                check_shardable(module, f"host module '{name}'")
            tables = [part for part in module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)]
            if options.sparse and not tables:
                raise ConfigError(
                    f"--sparse: host module '{name}' ({type(module).__name__}) has no embedding; "
                    "leave out --sparse"
                )
            for table in tables:
                table.sparse = options.sparse

    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        hosts = matching(model, self.options.host, "--host")
        stages = Stages(devices[0] if devices else HOST, timer)

        def wrap(name: str, child: nn.Module) -> nn.Module:
            if name in hosts:
                tables = shard(child, self.group) if self.options.shard_embedding else child
                return OnHost(place(tables, HOST), stages)
            place(child, stages.device)
            if len(devices) < 2 or not list(child.parameters()):
                return Dense(self.compiled(child), stages)
            return Dense(data_parallel_module(child, devices, self.config, timer), stages)

        rewire(model, hosts, wrap, stages.device)
        module = Pipelined(model, stages.device) if self.options.pipeline else model
        used = (HOST, *(device for device in devices if device != HOST))
        if not self.group.members:
            return Placed(module, HOST, stages.device, used)
        sync = TableSync(self.group, module, hosts, timer)
        module = ddp_module(module, stages.device, timer, DdpOptions(), excluded=sync.tables.values())
        return Placed(module, HOST, stages.device, used, sync)


@dataclass(frozen=True)
class Stages:
    """The host and the device as the stages of a pipeline.

    A lock lets one part of a pipelined batch into its stage at a time, and costs nothing otherwise.
    """

    device: torch.device
    timer: Timer
    host_lock: threading.RLock = field(default_factory=threading.RLock)
    device_lock: threading.RLock = field(default_factory=threading.RLock)


class OnHost(Wrapper):
    """A module on the host, and the transfer of its outputs to the device."""

    def __init__(self, module: nn.Module, stages: Stages) -> None:
        super().__init__()
        self.module = module
        self.transfer = Transfer(stages.device, stages.timer)
        self.stages = stages

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        inputs, kwargs = move(inputs, HOST), move(kwargs, HOST)
        with self.stages.host_lock, self.stages.timer.phase("embedding", HOST):
            outputs = self.module(*inputs, **kwargs)
        return self.transfer(outputs)


class Dense(Wrapper):
    """A module on the accelerators, to which it moves inputs that are still on the host."""

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
    """Calls the model on both parts of a batch at once; the locks of the stages make it a pipeline."""

    def __init__(self, module: nn.Module, output_device: torch.device) -> None:
        super().__init__()
        self.module = module
        self.output_device = output_device

    def forward(self, *inputs: Any) -> Any:
        batches = parallel.scatter(inputs, [HOST] * MICRO_BATCHES)
        if len(batches) == 1:
            return self.module(*batches[0])
        call: Any = MicroBatch(self.module)
        outputs = parallel.parallel_apply([call] * len(batches), batches, devices=[HOST] * len(batches))
        return parallel.gather(outputs, self.output_device)


@dataclass(frozen=True)
class MicroBatch:
    """A call of the module on a part of the batch; unlike a replica it has no number."""

    module: nn.Module

    def __call__(self, *inputs: Any) -> Any:
        with running_on(HOST, None):
            return self.module(*inputs)
