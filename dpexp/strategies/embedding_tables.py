"""Embedding tables on the hosts of several ranks: replicated, or each rank with some of the rows.

    ids of rank 0 --+                  +--> lookup in rows 0-499   --+              +--> vectors of rank 0
                    |-- all-gather ----|                             |-- all-reduce |
    ids of rank 1 --+                  +--> lookup in rows 500-999 --+              +--> vectors of rank 1

One rank has the row of an id: its lookup is the vector, and its row gets the gradient.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional

from dpexp.config import ConfigError
from dpexp.data.dataset import Batch
from dpexp.devices import HOST
from dpexp.distributed.process_group import ProcessGroup
from dpexp.strategies.ddp import RowWeightedSync
from dpexp.strategies.wrappers import named_parameters, parts
from dpexp.timing import Timer


class ShardedEmbedding(nn.Module):
    """An ``nn.Embedding`` of which this rank has ``rows`` rows from ``first``; same ids, same vectors."""

    def __init__(self, table: nn.Embedding, group: ProcessGroup) -> None:
        super().__init__()
        shard = group.rows(table.num_embeddings)
        self.first, self.rows = shard.start, shard.stop - shard.start
        self.full_shape = tuple(table.weight.shape)
        self.placement = f"rows {shard.start} to {shard.stop - 1}" if self.rows else "no rows"
        self.sparse = table.sparse
        padding = table.padding_idx
        self.padding = padding - shard.start if padding in range(shard.start, shard.stop) else None
        self.weight = nn.Parameter(table.weight.detach()[shard].clone(), table.weight.requires_grad)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        all_ids, start = all_gather_ids(ids.reshape(-1))
        local_ids = all_ids - self.first
        found = ((local_ids >= 0) & (local_ids < self.rows)).nonzero().squeeze(1)
        vectors = functional.embedding(local_ids[found], self.weight, self.padding, sparse=self.sparse)
        all_vectors = vectors.new_zeros(len(all_ids), self.full_shape[1]).index_copy(0, found, vectors)
        local = _AllReduceRows.apply(all_vectors, start, ids.numel())  # type: ignore[no-untyped-call]
        return local.view(*ids.shape, -1)  # type: ignore[no-any-return]


def all_gather_ids(ids: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The ids ``(n,)`` of all ranks, by rank, and the index of this rank's first; n may differ."""
    counts = [torch.zeros(1, dtype=torch.long) for _ in range(distributed.get_world_size())]
    distributed.all_gather(counts, torch.tensor([len(ids)]))
    longest = max(int(count) for count in counts)
    padded = functional.pad(ids, (0, longest - len(ids)))
    all_padded = [torch.empty_like(padded) for _ in counts]
    distributed.all_gather(all_padded, padded)
    by_rank = [each[: int(count)] for each, count in zip(all_padded, counts, strict=True)]
    return torch.cat(by_rank), sum(map(len, by_rank[: distributed.get_rank()]))


class _AllReduceRows(torch.autograd.Function):
    """The sum over ranks of ``(n, dim)``, of which this rank gets ``count`` rows from ``start``.

    Backward all-reduces the gradients of all ranks' rows, averaged over ranks as DDP's are.
    """

    @staticmethod
    def forward(ctx: Any, vectors: torch.Tensor, start: int, count: int) -> torch.Tensor:
        ctx.rows, ctx.shape = slice(start, start + count), vectors.shape
        total = vectors.clone()
        distributed.all_reduce(total)
        return total[ctx.rows]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        total = gradients[0].new_zeros(ctx.shape)
        total[ctx.rows] = gradients[0]
        distributed.all_reduce(total)
        return total / distributed.get_world_size(), None, None


def shard(module: nn.Module, group: ProcessGroup) -> nn.Module:
    """The module with every embedding in it sharded by rows over the ranks."""
    if isinstance(module, nn.Embedding):
        sharded = ShardedEmbedding(module, group)
        for key, value in vars(module).items():
            if key.startswith("_forward") and "hooks" in key:
                setattr(sharded, key, value)
        return sharded
    for name, child in module.named_children():
        module.add_module(name, shard(child, group))
    return module


def check_shardable(module: nn.Module, where: str) -> None:
    """Raises ConfigError for a module without an embedding, or with one that cannot be split by rows."""
    if not any(isinstance(part, nn.Embedding) for part in module.modules()):
        raise ConfigError(f"--shard-embedding: {where} has no nn.Embedding; name with --host one that has")
    for part in module.modules():
        is_table = isinstance(part, nn.Embedding | nn.EmbeddingBag)
        if is_table and (isinstance(part, nn.EmbeddingBag) or part.max_norm or part.scale_grad_by_freq):
            raise ConfigError(
                f"--shard-embedding: {part} in {where} cannot be split by rows: only nn.Embedding can, "
                "without max_norm and scale_grad_by_freq"
            )


class TableSync(RowWeightedSync):
    """All-reduces the gradients of the ``tables``, the parameters of host modules; a sparse one by its rows.

    DistributedDataParallel synchronizes the others.
    """

    def __init__(self, group: ProcessGroup, module: nn.Module, hosts: Sequence[str], timer: Timer) -> None:
        super().__init__(group.size)
        prefixes = tuple(f"{host}." for host in hosts)
        named = named_parameters(module)
        self.tables = {name: table for name, table in named.items() if name.startswith(prefixes)}
        sharded = [part for part in parts(module) if isinstance(part.module, ShardedEmbedding)]
        self._shards = {f"{part.name}.weight" for part in sharded}
        self._sparse = {f"{part.name}.weight" for part in sharded if part.module.sparse}
        self._group = group
        self._timer = timer

    def backward(self, loss: torch.Tensor, batch: Batch) -> None:
        super().backward(loss, batch)
        with self._timer.phase("allreduce_tables", HOST):
            for name, table in self.tables.items():
                if table.requires_grad:
                    self._all_reduce(name, table)

    def _all_reduce(self, name: str, table: nn.Parameter) -> None:
        if name in self._shards:  # its lookup has reduced it
            if table.grad is None:  # no id of the batch is in its rows
                table.grad = _no_rows(table) if name in self._sparse else torch.zeros_like(table)
            return
        assert table.grad is not None, f"table {name} got no gradient"
        gradient = table.grad.coalesce() if table.grad.is_sparse else table.grad
        distributed.all_reduce(gradient)
        table.grad = gradient / self.world_size

    def norm(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        norm = super().norm(name, gradient)
        if name in self._shards:
            distributed.all_reduce(norm.square_())
            norm.sqrt_()
        return norm

    def full_tensor(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()
        if name not in self._shards:
            return tensor
        return torch.cat(self._group.all_gather(tensor.to_dense()))

    def load_full_tensor(self, name: str, tensor: torch.Tensor, value: torch.Tensor) -> None:
        rows = self._group.rows(len(value)) if name in self._shards else slice(None)
        tensor.detach().copy_(value[rows])


def _no_rows(table: torch.Tensor) -> torch.Tensor:
    """A sparse gradient of a table of which no row was looked up."""
    rows = torch.empty(1, 0, dtype=torch.long, device=table.device)
    values = table.new_empty(0, *table.shape[1:])
    return torch.sparse_coo_tensor(rows, values, table.shape, check_invariants=False)
