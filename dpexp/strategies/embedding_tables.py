"""Tables: embeddings of a model whose ranks share them, replicated or each with some of the rows.

    ids of rank 0 --+                 +--> lookup in rows 0-499   --+          +--> vectors of rank 0
                    |-- all gather ---|                             |-- sum ---|
    ids of rank 1 --+                 +--> lookup in rows 500-999 --+          +--> vectors of rank 1

Every id has one owner, whose lookup is the vector and whose rows get the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional

from dpexp.config import ConfigError
from dpexp.data import Batch
from dpexp.devices import HOST
from dpexp.distributed.process_group import ProcessGroup
from dpexp.strategies.ddp import RowWeightedSync
from dpexp.timing import Timer


class ShardedEmbedding(nn.Module):
    """An ``nn.Embedding`` of which this rank holds ``rows`` rows from ``first``; same ids, same vectors."""

    def __init__(self, table: nn.Embedding, group: ProcessGroup) -> None:
        super().__init__()
        part = group.rows(table.num_embeddings)
        self.first, self.rows = part.start, part.stop - part.start
        self.whole_shape = tuple(table.weight.shape)
        self.placement = f"rows {part.start} to {part.stop - 1}" if self.rows else "no rows"
        self.sparse = table.sparse
        own = table.padding_idx is not None and part.start <= table.padding_idx < part.stop
        self.padding = table.padding_idx - part.start if own and table.padding_idx is not None else None
        self.weight = nn.Parameter(table.weight.detach()[part].clone(), table.weight.requires_grad)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        everyone, start = gathered(ids.reshape(-1))
        local = everyone - self.first
        places = ((local >= 0) & (local < self.rows)).nonzero().squeeze(1)
        vectors = functional.embedding(local[places], self.weight, self.padding, sparse=self.sparse)
        found = vectors.new_zeros(len(everyone), self.whole_shape[1]).index_copy(0, places, vectors)
        own = _Summed.apply(found, start, ids.numel())  # type: ignore[no-untyped-call]
        return own.view(*ids.shape, -1)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"{self.placement} of {self.whole_shape}"


def gathered(ids: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The ids ``(n,)`` of all group, by rank, and where this rank's begin."""
    counts = [torch.zeros(1, dtype=torch.long) for _ in range(distributed.get_world_size())]
    distributed.all_gather(counts, torch.tensor([len(ids)]))
    most = max(int(count) for count in counts)
    padded = functional.pad(ids, (0, most - len(ids)))
    all_padded = [torch.empty_like(padded) for _ in counts]
    distributed.all_gather(all_padded, padded)
    everyone = [each[: int(count)] for each, count in zip(all_padded, counts, strict=True)]
    return torch.cat(everyone), sum(map(len, everyone[: distributed.get_rank()]))


class _Summed(torch.autograd.Function):
    """The sum over ranks of ``(n, dim)``, of which this rank wants ``count`` rows from ``start``.

    Its gradient is what each rank has for its own rows, together, averaged over the ranks as all other
    gradients are.
    """

    @staticmethod
    def forward(ctx: Any, found: torch.Tensor, start: int, count: int) -> torch.Tensor:
        ctx.place = (start, count, found.shape)
        total = found.clone()
        distributed.all_reduce(total)
        return total[start : start + count]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        start, count, shape = ctx.place
        total = gradients[0].new_zeros(shape)
        total[start : start + count] = gradients[0]
        distributed.all_reduce(total)
        return total / distributed.get_world_size(), None, None


def shard(module: nn.Module, group: ProcessGroup, where: str) -> nn.Module:
    """The module with every embedding inside it sharded. Raises ConfigError for one that cannot be."""
    if isinstance(module, nn.Embedding):
        return ShardedEmbedding(module, group)
    for name, child in module.named_children():
        module.add_module(name, shard(child, group, where))
    return module


def check_shardable(module: nn.Module, where: str) -> None:
    """Raises ConfigError for a module without tables, or with one that cannot be split by rows."""
    tables = [part for part in module.modules() if isinstance(part, nn.Embedding)]
    if not tables:
        raise ConfigError(f"--shard-embedding: {where} has no nn.Embedding; name with --host one that has")
    for part in module.modules():
        odd = isinstance(part, nn.EmbeddingBag) or (
            isinstance(part, nn.Embedding) and (part.max_norm is not None or part.scale_grad_by_freq)
        )
        if odd:
            raise ConfigError(
                f"--shard-embedding: {part} in {where} cannot be split by rows: only nn.Embedding can, "
                "without max_norm and scale_grad_by_freq"
            )


class HostTables(RowWeightedSync):
    """DDP brings the dense part's gradients together, this the tables': a sparse one as its rows alone."""

    def __init__(
        self, group: ProcessGroup, tables: Mapping[str, nn.Parameter], shards: Sequence[str], timer: Timer
    ) -> None:
        super().__init__(group.size)
        self._group = group
        self._tables = tables
        self._shards = frozenset(shards)
        self._timer = timer

    def backward(self, loss: torch.Tensor, batch: Batch) -> None:
        super().backward(loss, batch)
        with self._timer.phase("allreduce_tables", HOST):
            for name, table in self._tables.items():
                if table.requires_grad:
                    self._bring_together(name, table)

    def _bring_together(self, name: str, table: nn.Parameter) -> None:
        if name in self._shards:
            if table.grad is None:  # nobody asked for its rows
                table.grad = torch.zeros_like(table)
            return
        assert table.grad is not None, f"table {name} got no gradient"
        gradient = table.grad.coalesce() if table.grad.is_sparse else table.grad
        distributed.all_reduce(gradient)
        table.grad = gradient / self.group

    def full_tensor(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()
        if name not in self._shards:
            return tensor
        return torch.cat(self._group.all_gather(tensor.to_dense()))

    def load_full_tensor(self, name: str, tensor: torch.Tensor, value: torch.Tensor) -> None:
        rows = self._group.rows(len(value)) if name in self._shards else slice(None)
        tensor.detach().copy_(value[rows])
