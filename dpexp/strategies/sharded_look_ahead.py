"""Look-ahead over ranks: while step i computes, the ranks exchange ids and vectors of the batches after it.

::

    main thread      |again i| dense i: forward, loss, backward |update i|again i+1| dense i+1 ...
      default group   c   v                 g   all-reduces                c   v
    lookup thread            |ids i+1 > read i+1 > vectors i+1|                     |ids i+2 > ...
      second group            n   i        v                                          n   i

    row 700 of rank 1, in step i of rank 1 and in i+1 of rank 0, in time from left to right
    rank 0     asks for 700 . gets its vector ....................... is told «changed», gets its vector
    rank 1     ...... reads it ............... update i writes it ... finds it stale, tells rank 0

Letters are all-to-alls: n how many ids, i ids, v vectors, g gradients, c a byte for each id: whether its
row has changed. Duplicates are sent once, and only the vectors of changed rows are sent again.

**Exact.** A row has one writer, the rank of its shard (by column: of these columns of it), and that rank
read it for the one that asked. So it applies the rules of ``look_ahead`` to its own reads and updates, and
needs to know nothing of others: after its update i - 1 it finds the rows that it read for batch i before or
while an update wrote them, and sends them again. That is what it would have sent in a step without look-
ahead. A lookup with other ids than were exchanged ahead cannot be done by one rank alone: it ends the run.

**In one order.** Each thread has a process group of its own, in which its collectives begin in one order on
every rank: the main thread's by step, the lookup thread's by batch. The main thread waits for the lookup
thread and never the reverse: step i for the lookups of batch i. These were handed to the thread of each
rank at the latest when it began step i - 1. So whatever waits, waits for a smaller i or for an earlier
operation of the same i, and the first of all that are not done waits for nothing. The ranks decide together
whether to look ahead.

**Ends.** Where a step raises, its rank ends the second group: the exchanges that wait in it raise on every
rank, and no thread survives. A lookup that raises, raises in its step; the thread does no further one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed, nn

from dpexp.config import ConfigError
from dpexp.data.dataset import Batch
from dpexp.distributed.process_group import ProcessGroup
from dpexp.strategies.look_ahead import LookAhead, Reads, Step
from dpexp.strategies.lookups import Lookup, named_arguments
from dpexp.strategies.sharded_embedding import PlacedTable, ShardedEmbedding, ShardedLookup, all_to_all


class ShardedLookAhead(LookAhead):
    """The lookups of ``hosts`` with sharded tables; every rank has one, and takes the same steps."""

    def __init__(
        self,
        hosts: Sequence[nn.Module],
        device: torch.device,
        depth: int,
        group: ProcessGroup,
        timeout_s: float,
    ) -> None:
        super().__init__(hosts, device, depth, group)
        self._second = group.second(timeout_s)
        self._error: BaseException | None = None

    def _submit(self, thread: ThreadPoolExecutor, batch: Batch) -> Future[Reads]:
        self._second.open()
        return thread.submit(self._read_in_order, batch)

    def _read_in_order(self, batch: Batch) -> Reads:
        """``_read_ahead``, unless an earlier one failed: the other ranks wait for that one."""
        if self._error is not None:
            raise self._error
        try:
            return self._read_ahead(batch)
        except BaseException as error:
            self._error = error
            raise

    def _read(self, table: PlacedTable, forward: Callable[..., Any], args: Any, kwargs: Any) -> Lookup:
        assert isinstance(table, ShardedEmbedding)
        named = named_arguments(args, kwargs)
        found = table.look_up(**named, group=self._second.group)
        return ExchangedLookup(table, named, found.outputs.detach(), _backward(table, found.outputs), found)

    def _read_again(self, lookups: Sequence[ExchangedLookup], stale: Sequence[torch.Tensor]) -> None:
        exchange_again(lookups, stale)

    def _differs(self, step: Step) -> None:
        raise ConfigError(
            "--pipeline with --shard-embedding: a step looks up other ids than its batch did ahead of it, or "
            "in another order, of which the other ranks do not know: use --serial"
        )

    def _abort(self) -> None:
        self._second.abort()
        self._error = None


@dataclass(eq=False)
class ExchangedLookup(Lookup):
    """A lookup in a sharded table, in the vectors of its distinct ids."""

    table: ShardedEmbedding
    found: ShardedLookup

    @property
    def ids(self) -> torch.Tensor:
        """The place of each id among the distinct ones."""
        return self.found.positions

    @property
    def source(self) -> torch.Tensor:
        """The vectors of the distinct ids."""
        return self.found.exchange.vectors.detach()

    @property
    def rows(self) -> torch.Tensor:
        """The rows of this rank's shard that it read for all ranks."""
        return torch.cat(list(self.found.exchange.rows))

    @property
    def asked(self) -> list[int]:
        """How many ids each rank was asked for."""
        return [place.stop - place.start for place in self.found.exchange.asked]

    def by_asking_rank(self, of_rows: torch.Tensor) -> Sequence[torch.Tensor]:
        """Something of each of ``rows``, by the rank that asked for it."""
        return torch.split(of_rows, [len(rows) for rows in self.found.exchange.rows])

    def bytes_of_row(self, rank: int) -> int:
        """The bytes of what a rank has of a row."""
        return len(self.table.shards[rank].columns) * self.table.weight.element_size()

    def to_send(self, rank: int, is_stale: torch.Tensor) -> torch.Tensor:
        """The bytes of the stale ones of the rows that a rank asked for."""
        rows = self.found.exchange.rows[rank][is_stale]
        return self.table.weight.detach()[rows].flatten().view(torch.uint8)

    def write(self, rank: int, is_changed: torch.Tensor, sent: torch.Tensor) -> None:
        """Replace what a rank has of the vectors of changed ids by the bytes that it sent."""
        columns = self.table.shards[rank].columns
        values = sent.clone().view(self.source.dtype)
        vectors = self.source[self.found.exchange.asked[rank], columns.start : columns.stop]
        vectors[is_changed] = values.view(int(is_changed.sum()), len(columns))

    def read_changed(self, is_changed: Sequence[torch.Tensor]) -> None:
        """Make the outputs again of the ids of which any rank has changed something."""
        changed = torch.zeros(len(self.source), dtype=torch.bool)
        for place, of_rank in zip(self.found.exchange.asked, is_changed, strict=True):
            changed[place] |= of_rank
        stale = changed[self.ids.reshape(-1)].nonzero().squeeze(1)
        if len(stale):
            self.read_again(stale)

    def _pool(self, ids: torch.Tensor, offsets: Any, weights: Any) -> torch.Tensor:
        return self.found.pool(ids, self.source, offsets, per_sample_weights=weights)


def exchange_again(lookups: Sequence[ExchangedLookup], stale: Sequence[torch.Tensor]) -> None:
    """Tell every rank which of the vectors that it asked for have changed, and send it these.

    ``stale`` says which, of the rows that this rank read for others, by lookup. All lookups share the
    two all-to-alls.
    """
    ranks = range(distributed.get_world_size())
    is_stale = [each.by_asking_rank(rows) for each, rows in zip(lookups, stale, strict=True)]
    asked = [[each.asked[rank] for each in lookups] for rank in ranks]
    told = _exchange([torch.cat([each[rank] for each in is_stale]) for rank in ranks], map(sum, asked))
    is_changed = [torch.split(told[rank], asked[rank]) for rank in ranks]
    sizes = [
        [int(of.sum()) * each.bytes_of_row(rank) for each, of in zip(lookups, is_changed[rank], strict=True)]
        for rank in ranks
    ]
    sent = [
        torch.cat([each.to_send(rank, of[rank]) for each, of in zip(lookups, is_stale, strict=True)])
        for rank in ranks
    ]
    received = _exchange(sent, map(sum, sizes))
    for rank in ranks:
        parts = torch.split(received[rank], sizes[rank])
        for each, of, values in zip(lookups, is_changed[rank], parts, strict=True):
            each.write(rank, of, values)
    for each, of_ranks in zip(lookups, zip(*is_changed, strict=True), strict=True):
        each.read_changed(of_ranks)


def _exchange(sent: Sequence[torch.Tensor], sizes: Iterable[int]) -> Sequence[torch.Tensor]:
    """A tensor to each rank, for one of each size from each rank."""
    sizes = list(sizes)
    return torch.split(all_to_all(torch.cat(list(sent)), [len(each) for each in sent], sizes), sizes)


def _backward(
    table: ShardedEmbedding, outputs: torch.Tensor
) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """From the gradient of the outputs to that of this rank's shard, by the exchange back."""
    if not outputs.requires_grad:
        return None

    def backward(gradient: torch.Tensor) -> torch.Tensor:
        (found,) = torch.autograd.grad(outputs, table.weight, gradient)
        return found

    return backward
