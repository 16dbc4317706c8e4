"""``hybrid``: named submodules stay on the host, the rest goes to the accelerators.

    ids --> embedding on cpu --transfer--> linear on cuda:0 --> outputs             (one accelerator)
    ids --> embedding on cpu --transfer--> linear in DataParallel --> outputs       (several)

A table of many rows fits the host's memory, and a batch needs only a few of its rows: moving those
rows is cheap, moving the table is not. ``--sparse`` makes its gradient as small as the rows touched.
``--pipeline`` splits the batch in two, so that the host embeds the second half while the first is
in the dense part:

    host     |embed 0|embed 1|
    device           |dense 0|dense 1|

Under torchrun each rank has one accelerator. The dense part is then in DistributedDataParallel; the host
modules are on every rank's host, their gradients all-reduced, or ``--shard-embedding`` gives each rank
some of the rows (see ``tables``).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from dpexp import parallel
from dpexp.config import ConfigError, HybridOptions
from dpexp.devices import HOST, move, physical, place, running_on
from dpexp.strategies.base import Needs, Placed
from dpexp.strategies.data_parallel import Replicating, data_parallel_module
from dpexp.strategies.ddp import synchronized
from dpexp.strategies.embedding_tables import HostTables, ShardedEmbedding, check_shardable, shard
from dpexp.strategies.wrappers import (
    Transfer,
    Wrapper,
    check_not_tied,
    matching,
    named_parameters,
    parts,
    place_own,
    rewire,
)
from dpexp.timing import Timer

MICRO_BATCHES = 2
"""Parts of a pipelined batch. Two gradients add up to the same bits in either order; three need not."""


class Hybrid(Replicating):
    """Host modules by name (default ``embedding``); every other module on the accelerators."""

    name = "hybrid"
    needs = Needs(devices=True)

    @property
    def options(self) -> HybridOptions:
        """The strategy's own options."""
        assert isinstance(self.config.options, HybridOptions)
        return self.config.options

    def hosts(self, model: nn.Module) -> tuple[str, ...]:
        """The names of the submodules that stay on the host. Raises ConfigError for one that is not there."""
        return matching(model, self.options.host, "--host")

    def prepare(self, model: nn.Module, devices: Sequence[torch.device]) -> None:
        super().prepare(model, devices)
        if self.config.compile and len(devices) > 1:
            raise ConfigError(
                f"--compile: with {len(devices)} devices the dense part is replicated; give one device"
            )
        if self.options.shard_embedding and not self.group.members:
            raise ConfigError("--shard-embedding: the rows are split over ranks: start them with torchrun")
        if self.options.shard_embedding and self.options.pipeline:
            raise ConfigError(
                "--shard-embedding and --pipeline: the ranks must look up in one order; give one of the two"
            )
        if devices:
            check_not_tied(model, self.hosts(model), "--host")
        for name in self.hosts(model):
            module = model.get_submodule(name)
            if self.options.shard_embedding:
                check_shardable(module, f"host module '{name}'")
            tables = [part for part in module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)]
            if self.options.sparse and not tables:
                raise ConfigError(
                    f"--sparse: host module '{name}' ({type(module).__name__}) has no embedding; "
                    "leave out --sparse"
                )
            for table in tables:
                table.sparse = self.options.sparse

    def place(self, model: nn.Module, devices: Sequence[torch.device], timer: Timer) -> Placed:
        stages = Stages(tuple(devices), timer)
        hosts = self.hosts(model)

        def stage(name: str, child: nn.Module) -> nn.Module:
            if name in hosts:
                tables = shard(child, self.group, name) if self.options.shard_embedding else child
                return OnHost(place(tables, HOST), stages)
            return Dense(self._dense(child, stages), stages)

        rewire(model, hosts, stage, lambda module: place_own(module, stages.device))
        module = Pipelined(model, stages.device) if self.options.pipeline else model
        used = (HOST, *(each for each in devices if each != HOST))
        if not self.group.members:
            return Placed(module, HOST, stages.device, used)
        tables = {
            name: each
            for name, each in named_parameters(module).items()
            if any(name.startswith(f"{host}.") for host in hosts)
        }
        shards = [
            f"{part.name}.weight" for part in parts(module) if isinstance(part.module, ShardedEmbedding)
        ]
        gradient_sync = HostTables(self.group, tables, shards, timer)
        module = synchronized(module, stages.device, timer, apart=tables.values())
        return Placed(module, HOST, stages.device, used, gradient_sync)

    def _dense(self, child: nn.Module, stages: Stages) -> nn.Module:
        place(child, stages.device)
        if len(stages.devices) < 2 or not list(child.parameters()):
            return self.compiled(child)
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


class OnHost(Wrapper):
    """A module on the host whose outputs go on to the accelerator."""

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
        part: Any = MicroBatch(self.module)
        outputs = parallel.parallel_apply([part] * len(batches), batches, devices=[HOST] * len(batches))
        return parallel.gather(outputs, self.output_device)


class MicroBatch:
    """A call of the module on a part of the batch, which is not a replica and has no number."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, *inputs: Any) -> Any:
        with running_on(HOST, None):
            return self.module(*inputs)
