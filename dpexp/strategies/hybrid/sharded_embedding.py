"""An embedding table split over ranks: ids go to the ranks that have their rows, and vectors come back.

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
ranks of its row, which add those of all ranks. So what a rank asks for grows with the distinct ids of its own
rows of the batch. Of a table that is split by column every rank has all rows: it gets the ids of all ranks,
and returns its columns.

Source: the sharded tables of TorchRec (Ivchenko et al., 2022). Its fusion of several tables is in
``exchanged_lookups``, for those that are looked up ahead.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional

from dpexp.config.ranges import plural
from dpexp.devices import HOST
from dpexp.strategies.hybrid.table_shards import Split
from dpexp.strategies.modules.tables import EmbeddingTable, TablePart
from dpexp.timing import Timer


class ShardedEmbedding(TablePart):
    """An ``nn.Embedding`` of which this rank has one shard; same ids, same vectors.

    Every rank must call it equally often, in the same order. Raises IndexError for ids that the table lacks.
    """

    def __init__(self, table: EmbeddingTable, shards: Split, timer: Timer) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = self.full_shape = tuple(table.weight.shape)
        self.padding_idx, self.sparse = table.padding_idx, table.sparse
        self.shards, self.timer = shards, timer
        self.shard = shards[distributed.get_rank()]
        self.placement = self.shard.of(self.full_shape)
        rows, columns = (slice(each.start, each.stop) for each in (self.shard.rows, self.shard.columns))
        own = table.weight.detach()[rows, columns].clone()
        self.weight = nn.Parameter(own, table.weight.requires_grad)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Ids of any shape -> vectors ``(*shape, dim)``."""
        distinct, positions = torch.unique(input, return_inverse=True)
        return self.pool(distinct)(positions, self.vectors(distinct.long()))

    def pool(self, distinct: torch.Tensor) -> Callable[..., torch.Tensor]:
        """From the places of ids among the distinct ones, and the vectors of these, to the outputs."""
        return functional.embedding

    def vectors(self, ids: torch.Tensor) -> torch.Tensor:
        places = self.places(ids)
        asked = _lengths(places)
        with self.timer.phase("all_to_all_ids", HOST):
            wanted = all_to_all(asked, [1] * len(asked), [1] * len(asked))
            sent = torch.cat([ids[place] for place in places])
            found = all_to_all(sent, asked.tolist(), wanted.tolist())
        own = functional.embedding(
            found - self.shard.rows.start, self.weight, self.padding_row, sparse=self.sparse
        )
        widths = [len(shard.columns) for shard in self.shards]
        sizes = [count * width for count, width in zip(asked.tolist(), widths, strict=True)]
        own_sizes = [count * len(self.shard.columns) for count in wanted.tolist()]
        numbers = _AllToAll.apply(own.flatten(), own_sizes, sizes, self.timer)  # type: ignore[no-untyped-call]
        if len(self.shard.columns) == self.embedding_dim:
            whole: torch.Tensor = numbers.view(-1, self.embedding_dim)
            return whole
        return torch.cat(
            [part.view(len(ids), width) for part, width in zip(numbers.split(sizes), widths, strict=True)], 1
        )

    def asked(self, ids: torch.Tensor) -> torch.Tensor:
        return _lengths(self.places(ids))

    def places(self, ids: torch.Tensor) -> list[slice]:
        """Of distinct ids ``(n,)``, ascending, where those of each rank's rows are.

        Raises IndexError where the table lacks one.
        """
        if len(ids) and not 0 <= int(ids[0]) <= int(ids[-1]) < self.num_embeddings:
            raise IndexError(
                f"ids {int(ids[0])} to {int(ids[-1])} in a table of "
                f"{plural(self.num_embeddings, 'row')}: they must be 0 to {self.num_embeddings - 1}"
            )
        bounds = torch.tensor([(shard.rows.start, shard.rows.stop) for shard in self.shards])
        return [slice(*each) for each in torch.searchsorted(ids, bounds).tolist()]

    @property
    def padding_row(self) -> int | None:
        """The row without a gradient, by its number in this shard, if this rank has it."""
        padding, rows = self.padding_idx, self.shard.rows
        return None if padding is None or padding not in rows else rows.index(padding)


class ShardedEmbeddingBag(ShardedEmbedding):
    """An ``nn.EmbeddingBag`` of which this rank has one shard; the rank of a bag pools its vectors."""

    def __init__(self, table: nn.EmbeddingBag, shards: Split, timer: Timer) -> None:
        super().__init__(table, shards, timer)
        self.mode, self.include_last_offset = table.mode, table.include_last_offset

    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        distinct, positions = torch.unique(input, return_inverse=True)
        vectors = self.vectors(distinct.long())
        return self.pool(distinct)(positions, vectors, offsets, per_sample_weights=per_sample_weights)

    def pool(self, distinct: torch.Tensor) -> Callable[..., torch.Tensor]:
        padding = [] if self.padding_idx is None else (distinct == self.padding_idx).nonzero().tolist()
        return partial(
            functional.embedding_bag,
            mode=self.mode,
            include_last_offset=self.include_last_offset,
            padding_idx=padding[0][0] if padding else None,
        )


def _lengths(places: Sequence[slice]) -> torch.Tensor:
    return torch.tensor([place.stop - place.start for place in places])


class _AllToAll(torch.autograd.Function):
    """Numbers ``(n,)``, in pieces of these sizes for the ranks -> the pieces of all ranks, of ``sizes_back``.

    Backward returns the gradients to where the numbers came from, averaged over ranks as DDP's are.
    """

    @staticmethod
    def forward(
        ctx: Any, numbers: torch.Tensor, sizes: Sequence[int], sizes_back: Sequence[int], timer: Timer
    ) -> torch.Tensor:
        ctx.sizes, ctx.sizes_back, ctx.timer = sizes, sizes_back, timer
        with timer.phase("all_to_all_vectors", HOST):
            return all_to_all(numbers, sizes, sizes_back)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        with ctx.timer.phase("all_to_all_gradients", HOST):
            back = all_to_all(gradients[0], ctx.sizes_back, ctx.sizes)
        return back / distributed.get_world_size(), None, None, None


def all_to_all(
    numbers: torch.Tensor, sizes: Sequence[int], sizes_back: Sequence[int], group: Any = None
) -> torch.Tensor:
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
        group=group,
    )
    return found
