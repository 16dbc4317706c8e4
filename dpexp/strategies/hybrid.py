"""``hybrid``: named submodules stay on the host, the rest goes to the accelerators.

    ids --> embedding on cpu --transfer--> linear on cuda:0 --> outputs             (one accelerator)
    ids --> embedding on cpu --transfer--> linear in DataParallel --> outputs       (several)

A batch needs a few rows of a large table: they are cheap to move, the table is not. ``--sparse`` makes its
gradient as small as those rows. ``--pipeline`` splits the batch in two, so that the host embeds the second
half while the device computes the first:

    host     |embed 0|embed 1|
    device           |dense 0|dense 1|

Under torchrun each rank has one accelerator, with the dense part in DistributedDataParallel. Every rank has
the tables on its host, their gradients all-reduced; with ``--shard-embedding`` it has a shard of each.
"""

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpexp import parallel
from dpexp.config import ConfigError, DdpOptions, HybridOptions
from dpexp.devices import HOST, move, place, running_on
from dpexp.strategies.base import Devices, Needs, Placed
from dpexp.strategies.data_parallel import Replicating, data_parallel_module
from dpexp.strategies.ddp import ddp_module
from dpexp.strategies.embedding_tables import TableSync, replaced, shards_of
from dpexp.strategies.hooks import check_no_hooks
from dpexp.strategies.mapped_tables import MappedTables, check_table_file
from dpexp.strategies.sharded_embedding import ShardedEmbedding
from dpexp.strategies.submodules import check_not_tied, matching, rewire
from dpexp.strategies.table_shards import Table, check_shardable, plan_shards
from dpexp.strategies.wrappers import Transfer, Wrapper
from dpexp.timing import Timer

MICRO_BATCHES = 2  # two gradients add up to the same bits in either order; three need not


class Hybrid(Replicating):
    """Host modules by name (default ``embedding``); every other module on the accelerators."""

    name = "hybrid"
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
        self._check_sharding()
        host_tables = []
        if devices:
            check_not_tied(model, hosts, "--host")
        for name in hosts:
            module = model.get_submodule(name)
            if options.shard_embedding:
                check_shardable(module, f"host module '{name}'")
                check_no_hooks(module, f"--shard-embedding of '{name}'")
            tables = [part for part in module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)]
            if options.sparse and not tables:
                kind = type(module).__name__
                raise ConfigError(f"--sparse: host module '{name}' ({kind}) has no embedding; use --dense")
            for table in tables:
                table.sparse = options.sparse
            host_tables += tables
        if options.table_file:
            check_table_file(self.config, self.group, host_tables)
            self._mapped.settle(model, host_tables)

    def building(self) -> AbstractContextManager[object]:
        return self._mapped if self.options.table_file else nullcontext()

    @cached_property
    def _mapped(self) -> MappedTables:
        return MappedTables(Path(self.options.table_file).expanduser())

    @property
    def _is_rowwise(self) -> bool:
        """Whether the optimizer keeps one number for each row of a table, which needs the whole row."""
        return self.config.optimizer.partition(":")[0] == "rowwise_adagrad"

    def _shards(self, model: nn.Module, hosts: Sequence[str], timer: Timer) -> dict[int, ShardedEmbedding]:
        """What this rank has of the tables of the host modules, by the id of the table."""
        prefixes = tuple(f"{host}." for host in hosts)
        named = {name: part for name, part in model.named_modules() if f"{name}.".startswith(prefixes)}
        tables = {name: part for name, part in named.items() if isinstance(part, Table)}
        by = self.options.shard_by
        return shards_of(
            tables, plan_shards(tables, self.group.size, by, columns=not self._is_rowwise), timer
        )

    def _check_sharding(self) -> None:
        options = self.options
        if options.shard_by != "auto" and not options.shard_embedding:
            raise ConfigError(f"--shard-by {options.shard_by} needs --shard-embedding")
        if options.shard_embedding and not self.group.members:
            raise ConfigError("--shard-embedding splits the tables over ranks: start them with torchrun")
        if options.shard_embedding and options.pipeline:
            raise ConfigError(
                "--shard-embedding excludes --pipeline: every rank must look up in the same order"
            )
        if options.shard_by == "column" and self._is_rowwise:
            raise ConfigError(
                f"--shard-by column: --optimizer {self.config.optimizer} takes the mean of a row's gradient, "
                "of which each rank would have some columns; use --shard-by row"
            )

    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        hosts = matching(model, self.options.host, "--host")
        device = devices[0] if devices else HOST
        host_lock, device_lock = threading.RLock(), threading.RLock()
        shards = self._shards(model, hosts, timer) if self.options.shard_embedding else {}

        def wrap(name: str, child: nn.Module) -> nn.Module:
            if name in hosts:
                return HostStage(place(replaced(child, shards), HOST), device, host_lock, timer)
            place(child, device)
            if len(devices) < 2 or not list(child.parameters()):
                return Stage(self.compiled(child), "dense", device, device_lock, timer)
            dense = data_parallel_module(child, devices, self.config, timer)
            return Stage(dense, "dense", device, device_lock, timer)

        rewire(model, hosts, wrap, device)
        module = Pipelined(model, device) if self.options.pipeline else model
        used = (HOST, *(each for each in devices if each != HOST))
        if not self.group.members:
            return Placed(module, HOST, device, used)
        sync = TableSync(self.group, module, hosts, timer)
        module = ddp_module(module, device, timer, DdpOptions(), excluded=sync.tables.values())
        return Placed(module, HOST, device, used, sync)


class Stage(Wrapper):
    """A module on its device, to which it moves its inputs; timed as ``phase``.

    The lock lets one part of a pipelined batch into the stage at a time, and costs nothing otherwise.
    """

    def __init__(
        self, module: nn.Module, phase: str, device: torch.device, lock: threading.RLock, timer: Timer
    ) -> None:
        super().__init__()
        self.module = module
        self.phase, self.device, self.lock, self.timer = phase, device, lock, timer

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        with self.lock, self.timer.phase(self.phase, self.device):
            inputs, kwargs = move(inputs, self.device), move(kwargs, self.device)
            return self.module(*inputs, **kwargs)


class HostStage(Stage):
    """A module on the host, and the transfer of its outputs to the device."""

    def __init__(self, module: nn.Module, device: torch.device, lock: threading.RLock, timer: Timer) -> None:
        super().__init__(module, "embedding", HOST, lock, timer)
        self.transfer = Transfer(device, timer)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.transfer(super().forward(*inputs, **kwargs))


class Pipelined(Wrapper):
    """Calls the model on both parts of a batch at once; the locks of the stages make it a pipeline."""

    def __init__(self, module: nn.Module, output_device: torch.device) -> None:
        super().__init__()
        self.module = module
        self.output_device = output_device
        self.pieces = MICRO_BATCHES

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
