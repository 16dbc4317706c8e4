"""An embedding table of which each rank has some rows: ids go there, and vectors come back.

::

    rank 0                                                        rank 1: rows 500-999
    ids 3, 700, 3, 9
      |  distinct, by owner
    3, 9 | 700 ------------------ all-to-all of ids ------------> 700
                                                                   |  lookup
    vectors of 3, 9 | 700 <------ all-to-all of vectors --------- vector of 700
      |  one for each id, or pooled by an EmbeddingBag
    outputs

Backward goes the same way: the gradients of equal ids are summed first, then an all-to-all takes each to the
rank of its row, which adds those of all ranks. So what a rank asks for grows with the distinct ids of its own
rows of the batch.

Source: the row-wise sharding of TorchRec (Ivchenko et al., "TorchRec: a PyTorch domain library for
recommendation systems", 2022).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional

from dpexp.config.errors import ConfigError, plural
from dpexp.devices import HOST
from dpexp.distributed.group import ProcessGroup, split
from dpexp.strategies.modules import EmbeddingTable, tables
from dpexp.timing import Timer


class ShardedEmbedding(nn.Module):
    """An ``nn.Embedding`` of which this rank has some rows; same ids, same vectors.

    ``weight`` and its gradient, ``sparse`` or not, are of these ``rows``, which ``placement`` says in words;
    ``full_shape`` is ``(rows, dim)`` of the table. Every rank must call it equally often, in the same order.
    Raises IndexError for ids that the table lacks.
    """

    def __init__(self, table: EmbeddingTable, group: ProcessGroup, timer: Timer) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = self.full_shape = tuple(table.weight.shape)
        self.padding_idx, self.sparse, self.timer = table.padding_idx, table.sparse, timer
        self.dp_size, self.shards = group.dp_size, split(self.num_embeddings, group.size)
        self.rows = rows = self.shards[group.rank]
        self.placement = f"rows {rows[0]} to {rows[-1]}" if rows else "no rows"
        own = table.weight.detach()[rows.start : rows.stop].clone()
        self.weight = nn.Parameter(own, table.weight.requires_grad)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Ids of any shape -> vectors ``(*shape, dim)``."""
        distinct, positions = torch.unique(input, return_inverse=True)
        return functional.embedding(positions, self.vectors(distinct.long()))

    def vectors(self, ids: torch.Tensor) -> torch.Tensor:
        """Distinct ids ``(n,)``, ascending -> vectors ``(n, dim)``."""
        asked = self.asked(ids)
        with self.timer.phase("all_to_all_ids", HOST):
            wanted = _all_to_all(asked, [1] * len(asked), [1] * len(asked))
            found = _all_to_all(ids, asked.tolist(), wanted.tolist())
        own = functional.embedding(found - self.rows.start, self.weight, self.padding_row, sparse=self.sparse)
        own_sizes, sizes = (self.embedding_dim * wanted).tolist(), (self.embedding_dim * asked).tolist()
        numbers = _AllToAll.apply(own.flatten(), own_sizes, sizes, self.dp_size, self.timer)  # type: ignore[no-untyped-call]
        vectors: torch.Tensor = numbers.view(-1, self.embedding_dim)
        return vectors

    def asked(self, ids: torch.Tensor) -> torch.Tensor:
        """How many of distinct ids, ascending, each rank is asked for: ``(ranks,)``."""
        if len(ids) and not 0 <= int(ids[0]) <= int(ids[-1]) < self.num_embeddings:
            raise IndexError(
                f"ids {int(ids[0])} to {int(ids[-1])} in a table of "
                f"{plural(self.num_embeddings, 'row')}: they must be 0 to {self.num_embeddings - 1}"
            )
        ends = torch.tensor([rows.stop for rows in self.shards])
        return torch.searchsorted(ids, ends).diff(prepend=torch.zeros(1, dtype=torch.long))

    @property
    def padding_row(self) -> int | None:
        """The row without a gradient, by its number in those of this rank, if it has it."""
        padding, rows = self.padding_idx, self.rows
        return None if padding is None or padding not in rows else rows.index(padding)


class ShardedEmbeddingBag(ShardedEmbedding):
    """An ``nn.EmbeddingBag`` of which this rank has some rows; the rank of a bag pools its vectors."""

    def __init__(self, table: nn.EmbeddingBag, group: ProcessGroup, timer: Timer) -> None:
        super().__init__(table, group, timer)
        self.mode, self.include_last_offset = table.mode, table.include_last_offset

    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        distinct, positions = torch.unique(input, return_inverse=True)
        vectors = self.vectors(distinct.long())
        padding = [] if self.padding_idx is None else (distinct == self.padding_idx).nonzero().tolist()
        return functional.embedding_bag(
            positions,
            vectors,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=padding[0][0] if padding else None,
        )


PlacedTable = EmbeddingTable | ShardedEmbedding


class _AllToAll(torch.autograd.Function):
    """Numbers ``(n,)``, in pieces of these sizes for the ranks -> the pieces of all ranks, of ``sizes_back``.

    Backward returns the gradients to where the numbers came from, averaged over the ranks that split the rows
    of the batch, as DDP's are.
    """

    @staticmethod
    def forward(
        ctx: Any,
        numbers: torch.Tensor,
        sizes: Sequence[int],
        sizes_back: Sequence[int],
        dp_size: int,
        timer: Timer,
    ) -> torch.Tensor:
        ctx.sizes, ctx.sizes_back, ctx.dp_size, ctx.timer = sizes, sizes_back, dp_size, timer
        with timer.phase("all_to_all_vectors", HOST):
            return _all_to_all(numbers, sizes, sizes_back)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        with ctx.timer.phase("all_to_all_gradients", HOST):
            back = _all_to_all(gradients[0], ctx.sizes_back, ctx.sizes)
        return back / ctx.dp_size, None, None, None, None


def _all_to_all(numbers: torch.Tensor, sizes: Sequence[int], sizes_back: Sequence[int]) -> torch.Tensor:
    """Numbers ``(n,)``, in pieces of these sizes for the ranks -> the pieces of all ranks, of ``sizes_back``.

    They go as bytes, which gloo takes whatever the dtype.
    """
    found = numbers.new_empty(sum(sizes_back))
    width = numbers.element_size()
    distributed.all_to_all_single(
        found.view(torch.uint8),
        numbers.contiguous().view(torch.uint8),
        [width * size for size in sizes_back],
        [width * size for size in sizes],
    )
    return found


def check_shardable(module: nn.Module, where: str) -> None:
    """Raises ConfigError for a module without an embedding, or with one whose forward needs all of it."""
    found = tables(module)
    if not found:
        raise ConfigError(f"--shard-embedding: {where} has no embedding; name with --host a module that has")
    for part in found:
        if type(part).forward not in (nn.Embedding.forward, nn.EmbeddingBag.forward):
            raise ConfigError(
                f"--shard-embedding: {part} in {where} computes more than a lookup in its forward: compute "
                "it in a module around the table, so that the table is an nn.Embedding or nn.EmbeddingBag"
            )
        if part.max_norm or part.scale_grad_by_freq:
            raise ConfigError(
                f"--shard-embedding: {part} in {where} cannot be split over ranks: max_norm and "
                "scale_grad_by_freq need the ids of all ranks"
            )
