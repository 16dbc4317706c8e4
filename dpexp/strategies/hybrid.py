"""``hybrid``: named submodules stay on the host, the rest goes to the accelerators.

    ids --> embedding on cpu --transfer--> linear on cuda:0 --> outputs             (one accelerator)
    ids --> embedding on cpu --transfer--> linear in DataParallel --> outputs       (several)

A batch needs a few rows of a large table: they are cheap to move, the table is not. ``--sparse`` makes its
gradient as small as those rows. Under torchrun each rank has one accelerator, with the dense part in
DistributedDataParallel. Every rank has the tables on its host and ``TableSync`` all-reduces their gradients;
with ``--shard-embedding`` it has some rows of each (``row_shards.py``).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import distributed, nn

from dpexp.config.errors import ConfigError
from dpexp.config.strategy_options import DdpOptions, HybridOptions
from dpexp.data.batch import Batch
from dpexp.devices import HOST, move, place
from dpexp.distributed.group import ProcessGroup
from dpexp.strategies.base import Devices, Needs
from dpexp.strategies.modules import (
    EmbeddingTable,
    Transfer,
    Wrapper,
    check_no_hooks,
    check_not_tied,
    matching,
    named_parameters,
    parts,
    rewire,
    tables,
)
from dpexp.strategies.placed import GradientSync, Placed, Shards, rows_of
from dpexp.strategies.ranks import ddp_module
from dpexp.strategies.replicas import Replicating, data_parallel_module
from dpexp.strategies.row_shards import ShardedEmbedding, ShardedEmbeddingBag, check_shardable
from dpexp.timing import Timer


class Hybrid(Replicating):
    """Host modules by name (default ``embedding``); every other module on the accelerators."""

    needs = Needs(devices=True)
    options: HybridOptions

    def prepare(self, model: nn.Module, devices: Devices) -> None:
        super().prepare(model, devices)
        options = self.options
        hosts = matching(model, options.host, "--host")
        if self.compile and len(devices) > 1:
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
        shards = shards_of(found, self.group, timer) if self.options.shard_embedding else {}

        def wrap(name: str, child: nn.Module) -> nn.Module:
            if name in hosts:
                return HostStage(place(replaced(child, shards), HOST), device, timer)
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
        table_shards = TableShards(self.group, model)
        sync = TableSync(self.group.dp_size, tables_of_hosts, table_shards.tables, timer)
        module = ddp_module(model, device, timer, DdpOptions(), excluded=tables_of_hosts.values())
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


def shards_of(
    tables: Sequence[EmbeddingTable], group: ProcessGroup, timer: Timer
) -> dict[int, ShardedEmbedding]:
    """What this rank has of each table, by the id of the table.

    Tables with one weight have one afterwards, and hooks on a table's forward stay.
    """
    found: dict[int, ShardedEmbedding] = {}
    weights: dict[torch.Tensor, nn.Parameter] = {}
    for table in tables:
        kind: Any = ShardedEmbeddingBag if isinstance(table, nn.EmbeddingBag) else ShardedEmbedding
        sharded = kind(table, group, timer)
        sharded.weight = weights.setdefault(table.weight, sharded.weight)
        for key, value in vars(table).items():
            if key.startswith("_forward") and "hooks" in key:
                setattr(sharded, key, value)
        found[id(table)] = sharded
    return found


def replaced(module: nn.Module, tables: Mapping[int, nn.Module]) -> nn.Module:
    """The module with every embedding in it replaced by that of ``tables`` for its id."""
    if id(module) in tables:
        return tables[id(module)]
    for name, part in list(module.named_modules(remove_duplicate=False)):
        if id(part) in tables:
            module.set_submodule(name, tables[id(part)])
    return module


class TableShards(Shards):
    """Of a sharded table each rank has some rows; of everything else all."""

    def __init__(self, group: ProcessGroup, module: nn.Module) -> None:
        self._group = group
        named = {f"{part.name}.weight": part.module for part in parts(module)}
        self.tables = {name: each for name, each in named.items() if isinstance(each, ShardedEmbedding)}

    def norm(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        norm = super().norm(name, gradient)
        if name in self.tables:
            distributed.all_reduce(norm.square_())
            norm.sqrt_()
        return norm

    def full_tensor(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()
        if name not in self.tables:
            return tensor
        return torch.cat(self._group.all_gather(tensor.to_dense()))

    def rows(self, name: str, tensor: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        if name not in self.tables:
            return super().rows(name, tensor, ids)
        own = self.tables[name].rows
        chosen = ids[(ids >= own.start) & (ids < own.stop)] - own.start
        return torch.cat(self._group.all_gather(rows_of(tensor, chosen)))

    def load_full_tensor(self, name: str, tensor: torch.Tensor, value: torch.Tensor) -> None:
        if name in self.tables:
            own = self.tables[name].rows
            value = value[own.start : own.stop]
        tensor.detach().copy_(value)


class TableSync(GradientSync):
    """All-reduces the gradients of the ``tables``, the parameters of host modules; a sparse one by its rows.

    The lookup of a sharded table has reduced its gradient. DistributedDataParallel synchronizes all others.
    """

    def __init__(
        self,
        dp_size: int,
        tables: Mapping[str, nn.Parameter],
        sharded: Mapping[str, ShardedEmbedding],
        timer: Timer,
    ) -> None:
        super().__init__(dp_size)
        self._tables, self._sharded, self._timer = tables, sharded, timer

    def backward(self, loss: torch.Tensor, batch: Batch) -> None:
        super().backward(loss, batch)
        with self._timer.phase("allreduce_tables", HOST):
            for name, table in self._tables.items():
                if table.requires_grad:
                    self._all_reduce(name, table)

    def _all_reduce(self, name: str, table: nn.Parameter) -> None:
        if name in self._sharded:
            if table.grad is None:  # no id of the batch is in its rows
                table.grad = _no_rows(table) if self._sharded[name].sparse else torch.zeros_like(table)
            return
        assert table.grad is not None, f"table {name} got no gradient"
        gradient = table.grad.coalesce() if table.grad.is_sparse else table.grad
        distributed.all_reduce(gradient)
        table.grad = gradient / self.dp_size


def _no_rows(table: torch.Tensor) -> torch.Tensor:
    """A sparse gradient of a table of which no row was looked up."""
    rows = torch.empty(1, 0, dtype=torch.long, device=table.device)
    values = table.new_empty(0, *table.shape[1:])
    return torch.sparse_coo_tensor(rows, values, table.shape, check_invariants=False)
