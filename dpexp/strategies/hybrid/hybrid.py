"""``hybrid``: named submodules stay on the host, the rest goes to the accelerators.

    ids --> embedding on cpu --transfer--> linear on cuda:0 --> outputs             (one accelerator)
    ids --> embedding on cpu --transfer--> linear in DataParallel --> outputs       (several)

A batch needs a few rows of a large table: they are cheap to move, the table is not. ``--sparse`` makes its
gradient as small as those rows. Under torchrun each rank has one accelerator, with the dense part in
DistributedDataParallel. Every rank has the tables on its host; with ``--shard-embedding`` some rows of each.

Who calls whom, a step of a batch from top to bottom::

    HostStage -> table            here
      ShardedEmbedding.vectors      sharded_embedding    over ranks: ids and vectors of one table
    Transfer, Stage -> dense      here
    TableSync.backward            embedding_tables       over ranks: all-reduce of the tables
"""

from functools import partial
from typing import Any

import torch
from torch import nn

from dpexp.config.errors import ConfigError
from dpexp.config.strategies.ddp import DdpOptions
from dpexp.config.strategies.hybrid import HybridOptions
from dpexp.devices import HOST, move, place
from dpexp.strategies.base import Devices, Needs
from dpexp.strategies.hybrid.embedding_tables import TableShards, TableSync, replaced, shards_of
from dpexp.strategies.hybrid.sharded_embedding import check_shardable
from dpexp.strategies.modules.hooks import check_no_hooks
from dpexp.strategies.modules.submodules import check_not_tied, matching, rewire
from dpexp.strategies.modules.tables import tables
from dpexp.strategies.modules.wrappers import Transfer, Wrapper
from dpexp.strategies.placed import Placed
from dpexp.strategies.ranks.ddp import ddp_module
from dpexp.strategies.replicas.data_parallel import Replicating, data_parallel_module
from dpexp.timing import Timer


class Hybrid(Replicating):
    """Host modules by name (default ``embedding``); every other module on the accelerators."""

    needs = Needs(devices=True)
    options: HybridOptions

    def prepare(self, model: nn.Module, devices: Devices) -> None:
        super().prepare(model, devices)
        options = self.options
        hosts = matching(model, options.host, "--host")
        if self.config.compile and len(devices) > 1:
            raise ConfigError(
                f"--compile: with {len(devices)} devices the dense part is replicated; give one device"
            )
        if options.shard_embedding and not self.group.members:
            raise ConfigError("--shard-embedding splits the tables over ranks: start them with torchrun")
        check_not_tied(model, dict.fromkeys(hosts, HOST), devices[0] if devices else HOST, "--host")
        for name in hosts:
            module = model.get_submodule(name)
            if options.shard_embedding:
                check_shardable(module, f"host module '{name}'")
                check_no_hooks(module, f"--shard-embedding of '{name}'")
            if options.sparse and not tables(module):
                kind = type(module).__name__
                raise ConfigError(f"--sparse: host module '{name}' ({kind}) has no embedding; use --dense")
            for table in tables(module):
                table.sparse = options.sparse

    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        hosts = matching(model, self.options.host, "--host")
        device = devices[0] if devices else HOST
        found = [each for host in hosts for each in tables(model.get_submodule(host))]
        shards = shards_of(found, timer) if self.options.shard_embedding else {}

        def wrap(name: str, child: nn.Module) -> nn.Module:
            if name in hosts:
                return HostStage(place(replaced(child, shards), HOST), device, timer)
            place(child, device)
            if len(devices) < 2 or not list(child.parameters()):
                return Stage(self.compiled(child), "dense", device, timer)
            dense = data_parallel_module(child, devices, self.config, timer)
            return Stage(dense, "dense", device, timer)

        rewire(model, hosts, wrap, device)
        used = (HOST, *(each for each in devices if each != HOST))
        placed = partial(Placed, input_device=HOST, output_device=device, devices=used, timer=timer)
        if not self.group.members:
            return placed(model, forward_phase="")
        table_shards = TableShards(self.group, model)
        sync = TableSync(self.group.dp_size, model, hosts, table_shards, timer)
        module = ddp_module(model, device, timer, DdpOptions(), excluded=sync.tables.values())
        return placed(module, gradient_sync=sync, shards=table_shards)


class Stage(Wrapper):
    """A module on its device, to which it moves its inputs; timed as ``phase``."""

    def __init__(self, module: nn.Module, phase: str, device: torch.device, timer: Timer) -> None:
        super().__init__()
        self.module = module
        self.phase, self.device, self.timer = phase, device, timer

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        with self.timer.phase(self.phase, self.device):
            inputs, kwargs = move(inputs, self.device), move(kwargs, self.device)
            return self.module(*inputs, **kwargs)


class HostStage(Stage):
    """A module on the host, and the transfer of its outputs to the device."""

    def __init__(self, module: nn.Module, device: torch.device, timer: Timer) -> None:
        super().__init__(module, "embedding", HOST, timer)
        self.transfer = Transfer(device, timer)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.transfer(super().forward(*inputs, **kwargs))
