"""``hybrid``: named submodules stay on the host, the rest goes to the accelerators.

    ids --> embedding on cpu --transfer--> linear on cuda:0 --> outputs             (one accelerator)
    ids --> embedding on cpu --transfer--> linear in DataParallel --> outputs       (several)

A batch needs a few rows of a large table: they are cheap to move, the table is not. ``--sparse`` makes its
gradient as small as those rows. Under torchrun each rank has one accelerator, with the dense part in
DistributedDataParallel. Every rank has the tables on its host; with ``--shard-embedding`` a part of each.

Who calls whom, a step of a batch from top to bottom::

    prefetch.ahead                look_ahead, sharded_look_ahead   --pipeline: the next batches, in a thread
      HostCall.run                  host_calls                     the host modules, up to their lookups
      exchange                      exchanged_lookups              over ranks: ids and vectors of all tables
    HostStage -> table            here                             the host modules of this batch
      LookAhead._look_up            look_ahead                     vectors from ahead, if there are some
        read_again                    lookups, exchanged_lookups   of rows that were written since
      ShardedEmbedding.vectors      sharded_embedding              else over ranks: one table at a time
    Transfer, Stage -> dense      here
    TableSync.backward            embedding_tables                 over ranks: all-reduce of the tables
    prefetch.writing              look_ahead                       notes the rows that the update writes

    before the run    table_shards: which rank has what;  mapped_tables: ``--table-file``, tables on a disk
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpexp.config.errors import ConfigError
from dpexp.config.strategies.ddp import DdpOptions
from dpexp.config.strategies.hybrid import HybridOptions
from dpexp.devices import HOST, move, place
from dpexp.strategies.base import Devices, Needs
from dpexp.strategies.hybrid.embedding_tables import TableShards, TableSync, replaced, shards_of
from dpexp.strategies.hybrid.host_calls import check_lookups, trying_lookups
from dpexp.strategies.hybrid.look_ahead import LookAhead
from dpexp.strategies.hybrid.mapped_tables import MappedTables, check_table_file
from dpexp.strategies.hybrid.sharded_embedding import ShardedEmbedding
from dpexp.strategies.hybrid.sharded_look_ahead import ShardedLookAhead
from dpexp.strategies.hybrid.table_shards import check_shardable, plan_shards
from dpexp.strategies.modules.hooks import check_no_hooks
from dpexp.strategies.modules.submodules import check_not_tied, matching, rewire
from dpexp.strategies.modules.tables import EmbeddingTable, tables
from dpexp.strategies.modules.wrappers import Transfer, Wrapper
from dpexp.strategies.placed import Placed
from dpexp.strategies.prefetch import NoPrefetch, Prefetch
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
        self._check_sharding()
        self._check_pipeline()
        host_tables: list[EmbeddingTable] = []
        if devices:
            check_not_tied(model, hosts, "--host")
        for name in hosts:
            module = model.get_submodule(name)
            if options.shard_embedding:
                check_shardable(module, f"host module '{name}'")
                check_no_hooks(module, f"--shard-embedding of '{name}'")
            if options.pipeline:
                check_lookups(module, f"host module '{name}'")
            if options.sparse and not tables(module):
                kind = type(module).__name__
                raise ConfigError(f"--sparse: host module '{name}' ({kind}) has no embedding; use --dense")
            for table in tables(module):
                table.sparse = options.sparse
            host_tables += tables(module)
        if options.table_file:
            check_table_file(
                options.table_file,
                host_tables,
                has_ranks=bool(self.group.members),
                dtype=self.config.dtype,
                has_dense_gradients=not (options.sparse or self.config.eval),
            )
            self._mapped.settle(model, host_tables)

    def building(self) -> AbstractContextManager[object]:
        return self._mapped if self.options.table_file else nullcontext()

    @cached_property
    def _mapped(self) -> MappedTables:
        return MappedTables(Path(self.options.table_file).expanduser())

    @property
    def _is_rowwise(self) -> bool:
        """Whether the optimizer keeps one number for each row of a table, which needs the whole row."""
        return self.config.optimizer.name == "rowwise_adagrad"

    def _shards(self, model: nn.Module, hosts: Sequence[str], timer: Timer) -> dict[int, ShardedEmbedding]:
        """What this rank has of the tables of the host modules, by the id of the table."""
        found = [each for host in hosts for each in tables(model.get_submodule(host))]
        weights, by = list(dict.fromkeys(table.weight for table in found)), self.options.shard_by
        return shards_of(
            found, plan_shards(weights, self.group.size, by, columns=not self._is_rowwise), timer
        )

    def _check_sharding(self) -> None:
        options = self.options
        if options.shard_by != "auto" and not options.shard_embedding:
            raise ConfigError(f"--shard-by {options.shard_by} needs --shard-embedding")
        if options.shard_embedding and not self.group.members:
            raise ConfigError("--shard-embedding splits the tables over ranks: start them with torchrun")
        if options.shard_by == "column" and self._is_rowwise:
            raise ConfigError(
                f"--shard-by column: --optimizer {self.config.optimizer} takes the mean of a row's gradient, "
                "of which each rank would have some columns; use --shard-by row"
            )

    def _check_pipeline(self) -> None:
        options = self.options
        if options.lookahead > 1 and not options.pipeline:
            raise ConfigError(f"--lookahead {options.lookahead} needs --pipeline")
        if options.pipeline and not (options.sparse or self.config.eval):
            raise ConfigError(
                "--pipeline looks up the next batch while this one trains, and a dense gradient's update "
                "writes to every row: add --sparse"
            )

    def trying(self, model: nn.Module, inputs: Any) -> AbstractContextManager[None]:
        if not self.options.pipeline:
            return nullcontext()
        names = matching(model, self.options.host, "--host")
        return trying_lookups({name: model.get_submodule(name) for name in names}, inputs)

    def place(self, model: nn.Module, devices: Devices, timer: Timer) -> Placed:
        hosts = matching(model, self.options.host, "--host")
        device = devices[0] if devices else HOST
        shards = self._shards(model, hosts, timer) if self.options.shard_embedding else {}
        on_host: list[nn.Module] = []

        def wrap(name: str, child: nn.Module) -> nn.Module:
            if name in hosts:
                on_host.append(replaced(child, shards))
                return HostStage(place(on_host[-1], HOST), device, timer)
            place(child, device)
            if len(devices) < 2 or not list(child.parameters()):
                return Stage(self.compiled(child), "dense", device, timer)
            dense = data_parallel_module(child, devices, self.config, timer)
            return Stage(dense, "dense", device, timer)

        rewire(model, hosts, wrap, device)
        used = (HOST, *(each for each in devices if each != HOST))
        placed = partial(
            Placed,
            input_device=HOST,
            output_device=device,
            devices=used,
            prefetch=self._prefetch(on_host, device),
            timer=timer,
            host_modules=tuple(on_host),
        )
        if not self.group.members:
            return placed(model, forward_phase="")
        table_shards = TableShards(self.group, model)
        sync = TableSync(self.group.dp_size, model, hosts, table_shards, timer)
        module = ddp_module(model, device, timer, DdpOptions(), excluded=sync.tables.values())
        return placed(module, gradient_sync=sync, shards=table_shards)

    def _prefetch(self, hosts: Sequence[nn.Module], device: torch.device) -> Prefetch:
        options = self.options
        if not options.pipeline:
            return NoPrefetch()
        if not options.shard_embedding:
            return LookAhead(hosts, device, options.lookahead)
        return ShardedLookAhead(hosts, device, options.lookahead, self.group, options.comm_timeout)


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
