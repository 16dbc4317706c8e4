"""Embedding tables on the hosts of several ranks: how their gradients and their shards come together.

A table is replicated, its gradients all-reduced, or sharded (``sharded_embedding.py``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import distributed, nn

from dpexp.data.batch import Batch
from dpexp.devices import HOST
from dpexp.distributed.process_group import ProcessGroup
from dpexp.strategies.hybrid.sharded_embedding import ShardedEmbedding, ShardedEmbeddingBag
from dpexp.strategies.modules.tables import EmbeddingTable
from dpexp.strategies.modules.wrappers import named_parameters, parts
from dpexp.strategies.ranks.ddp import RowWeightedSync
from dpexp.strategies.shards import Shards, rows_of
from dpexp.timing import Timer


def shards_of(tables: Sequence[EmbeddingTable], timer: Timer) -> dict[int, ShardedEmbedding]:
    """What this rank has of each table, by the id of the table.

    Tables with one weight have one afterwards, and hooks on a table's forward stay.
    """
    found: dict[int, ShardedEmbedding] = {}
    weights: dict[torch.Tensor, nn.Parameter] = {}
    for table in tables:
        kind: Any = ShardedEmbeddingBag if isinstance(table, nn.EmbeddingBag) else ShardedEmbedding
        sharded = kind(table, timer)
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


class TableSync(RowWeightedSync):
    """All-reduces the gradients of the ``tables``, the parameters of host modules; a sparse one by its rows.

    The lookup of a sharded table has reduced its gradient. DistributedDataParallel synchronizes all others.
    """

    def __init__(
        self, dp_size: int, module: nn.Module, hosts: Sequence[str], shards: TableShards, timer: Timer
    ) -> None:
        super().__init__(dp_size)
        prefixes = tuple(f"{host}." for host in hosts)
        named = named_parameters(module)
        self.tables = {name: table for name, table in named.items() if name.startswith(prefixes)}
        self._sharded = shards.tables
        self._timer = timer

    def backward(self, loss: torch.Tensor, batch: Batch) -> None:
        super().backward(loss, batch)
        with self._timer.phase("allreduce_tables", HOST):
            for name, table in self.tables.items():
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
