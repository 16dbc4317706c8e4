"""Lookups of several sharded tables that are exchanged together, ahead of their step.

::

    ids of all tables, distinct, by owner ---- all-to-all: how many, then which ----> rows of each table
    vectors, in one tensor of each table <---- all-to-all ---------------------------- read
    outputs: one for each id, or pooled
    gradients of the vectors ----------------- all-to-all ---------------------------> gradients of the shards

What goes to a rank is what goes there of the first lookup, of the second, and so on; all ranks have as many
lookups, in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed

from dpexp.strategies.hybrid.lookups import Lookup
from dpexp.strategies.hybrid.sharded_embedding import ShardedEmbedding, all_to_all


@dataclass(eq=False)
class ExchangedLookup(Lookup):
    """A lookup in a sharded table; ``vectors`` are on the meta device until they were exchanged.

    ``distinct`` ids, ascending, have ``found`` vectors ``(n, dim)``, and the ids of the lookup have
    ``positions`` among them. By rank: ``asked`` are the places of the distinct ids that it is asked for,
    ``wanted`` the rows of this rank's shard that it asks for.
    """

    table: ShardedEmbedding
    distinct: torch.Tensor
    positions: torch.Tensor
    found: torch.Tensor
    pool: Callable[..., torch.Tensor]
    asked: Sequence[slice]
    wanted: Sequence[torch.Tensor] = ()

    @classmethod
    def asking(cls, table: ShardedEmbedding, arguments: Mapping[str, Any]) -> ExchangedLookup:
        """A lookup with these arguments, that is to be exchanged."""
        distinct, positions = torch.unique(arguments["input"], return_inverse=True)
        distinct = distinct.long()
        asked, pool = table.places(distinct), table.pool(distinct)
        found = table.weight.new_empty(len(distinct), table.embedding_dim)
        lookup = cls(table, arguments, found, None, distinct, positions, found, pool, asked)
        lookup.vectors = lookup._pooled("meta")
        return lookup

    @property
    def ids(self) -> torch.Tensor:
        """The place of each id among the distinct ones."""
        return self.positions

    @property
    def source(self) -> torch.Tensor:
        """The vectors of the distinct ids."""
        return self.found.detach()

    @property
    def rows(self) -> torch.Tensor:
        """The rows of this rank's shard that it read for all ranks."""
        return torch.cat(list(self.wanted))

    def count(self, rank: int) -> int:
        """How many ids a rank is asked for."""
        return int(self.asked[rank].stop - self.asked[rank].start)

    def shape(self, rank: int, ids: int) -> tuple[int, int]:
        """The shape of what a rank has of the vectors of so many ids."""
        return ids, len(self.table.shards[rank].columns)

    def part(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        """What a rank has of a tensor with the shape of the vectors."""
        columns = self.table.shards[rank].columns
        return tensor[self.asked[rank], columns.start : columns.stop]

    def make_vectors(self) -> None:
        """Make the outputs, once the vectors were exchanged."""
        self.found.requires_grad_(self.table.weight.requires_grad)
        outputs = self._pooled()
        self.vectors, self.node = outputs.detach(), outputs.grad_fn

    def make_changed_vectors(self, is_changed: Sequence[torch.Tensor]) -> None:
        """Make the outputs again of the ids of which any rank has changed something."""
        changed = torch.zeros(len(self.found), dtype=torch.bool)
        for place, of_rank in zip(self.asked, is_changed, strict=True):
            changed[place] |= of_rank
        stale = changed[self.positions.reshape(-1)].nonzero().squeeze(1)
        if len(stale):
            self.read_again(stale)

    def gradient(self, of_rows: torch.Tensor) -> torch.Tensor:
        """The gradient of this rank's shard from those of ``rows``."""
        padding = self.table.padding_row
        gradient: torch.Tensor = torch.ops.aten.embedding_sparse_backward(
            of_rows, self.rows, len(self.table.weight), -1 if padding is None else padding, False
        )
        return gradient

    def _pooled(self, device: str = "cpu") -> torch.Tensor:
        more = {key: value.to(device) for key, value in self.arguments.items() if key != "input"}
        return self.pool(self.positions.to(device), self.found.to(device), **more)

    def _pool(self, ids: torch.Tensor, offsets: Any, weights: Any) -> torch.Tensor:
        return self.pool(ids, self.source, offsets, per_sample_weights=weights)


_Lookups = Sequence[ExchangedLookup]
ByRank = Sequence[Sequence[Any]]
"""By rank, then by lookup."""


def exchange(lookups: _Lookups, group: Any) -> None:
    """Exchange ids and vectors of all lookups in a process group, and make their outputs."""
    ranks = range(distributed.get_world_size())
    asked = [[each.count(rank) for each in lookups] for rank in ranks]
    counts = _all_to_all([[torch.tensor(of)] for of in asked], [[(len(lookups),)] for _ in ranks], group)
    shapes = [[(count,) for count in of[0].tolist()] for of in counts]
    ids = [[each.distinct[each.asked[rank]] for each in lookups] for rank in ranks]
    found = _all_to_all(ids, shapes, group)
    for each, rows in zip(lookups, zip(*found, strict=True), strict=True):
        each.wanted = [of_rank - each.table.shard.rows.start for of_rank in rows]
    every = [[torch.ones(count, dtype=torch.bool) for count in of] for of in asked]
    _exchange_vectors(lookups, [[each.wanted[rank] for each in lookups] for rank in ranks], every, group)
    for each in lookups:
        each.make_vectors()


def exchange_again(lookups: _Lookups, stale: Sequence[torch.Tensor]) -> None:
    """Report to every rank which of the vectors that it asked for have changed, and send it these.

    ``stale`` says which, of the rows that this rank read for others, by lookup.
    """
    ranks = range(distributed.get_world_size())
    pairs = list(zip(lookups, stale, strict=True))
    of_lookups = [torch.split(is_stale, [len(rows) for rows in each.wanted]) for each, is_stale in pairs]
    is_stale = list(zip(*of_lookups, strict=True))
    is_changed = _all_to_all(is_stale, [[(each.count(rank),) for each in lookups] for rank in ranks])
    rows = [
        [each.wanted[rank][of] for each, of in zip(lookups, is_stale[rank], strict=True)] for rank in ranks
    ]
    _exchange_vectors(lookups, rows, is_changed)
    for each, of_ranks in zip(lookups, zip(*is_changed, strict=True), strict=True):
        each.make_changed_vectors(of_ranks)


def _exchange_vectors(lookups: _Lookups, rows: ByRank, is_asked: ByRank, group: Any = None) -> None:
    """Send each rank these rows of the shards; write those that come to the places of the ids that ask."""
    sent = [
        [each.table.weight.detach()[of] for each, of in zip(lookups, of_rank, strict=True)]
        for of_rank in rows
    ]
    shapes = [
        [each.shape(rank, int(of.sum())) for each, of in zip(lookups, of_rank, strict=True)]
        for rank, of_rank in enumerate(is_asked)
    ]
    for rank, found in enumerate(_all_to_all(sent, shapes, group)):
        for each, of, vectors in zip(lookups, is_asked[rank], found, strict=True):
            each.part(each.source, rank)[of] = vectors


def exchange_gradients(
    lookups: _Lookups, gradients: Sequence[torch.Tensor | None]
) -> Sequence[torch.Tensor | None]:
    """From gradients of the vectors that were found to those of this rank's shards, averaged as DDP's are."""
    own, ranks = distributed.get_rank(), range(distributed.get_world_size())
    used = [(each, of) for each, of in zip(lookups, gradients, strict=True) if of is not None]
    if not used:
        return gradients
    sent = [[each.part(of, rank) for each, of in used] for rank in ranks]
    shapes = [[each.shape(own, len(each.wanted[rank])) for each, _ in used] for rank in ranks]
    back = zip(*_all_to_all(sent, shapes), strict=True)
    found = {
        each: each.gradient(torch.cat(of) / len(ranks)) for (each, _), of in zip(used, back, strict=True)
    }
    return [found.get(each) for each in lookups]


def _all_to_all(sent: ByRank, shapes: ByRank, group: Any = None) -> ByRank:
    """Tensors to each rank, for tensors of these shapes and the same types from each, in one all-to-all."""
    flat = [torch.cat([_bytes(tensor) for tensor in of_rank]) for of_rank in sent]
    types = [tensor.dtype for tensor in sent[0]]
    sizes = [
        [math.prod(shape) * dtype.itemsize for shape, dtype in zip(of_rank, types, strict=True)]
        for of_rank in shapes
    ]
    received = all_to_all(torch.cat(flat), [len(each) for each in flat], [sum(each) for each in sizes], group)
    parts = iter(torch.split(received, [size for of_rank in sizes for size in of_rank]))
    # a copy begins where its type can
    return [
        [next(parts).clone().view(dtype).view(shape) for shape, dtype in zip(of_rank, types, strict=True)]
        for of_rank in shapes
    ]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)
