"""Look-ahead over ranks: while step i computes, the ranks exchange ids and vectors of the batches after it.

::

    main thread      |again i| dense i: forward, loss, backward |update i|again i+1| dense i+1 ...
      default group   c   v                 g   all-reduces                c   v
    lookup thread            |ids i+1 > read i+1 > vectors i+1|                     |ids i+2 > ...
      second group            n   i        v                                          n   i

    row 700 of rank 1, in step i of rank 1 and in i+1 of rank 0, in time from left to right
    rank 0     asks for 700 . gets its vector ....................... gets «changed» and its vector
    rank 1     ...... reads it ............... update i writes it ... finds it stale, sends it

Letters are all-to-alls of all lookups of a batch together (``exchanged_lookups``): n how many ids, i ids,
v vectors, g gradients, c a byte for each id: whether its row has changed. Duplicates are sent once, and only
the vectors of changed rows are sent again.

**Exact.** A row has one writer, the rank of its shard (by column: of these columns of it), and that rank
read it for the one that asked. So it applies the rules of ``look_ahead`` to its own reads and updates, and
needs to know nothing of others: after its update i - 1 it finds the rows that it read for batch i before or
while an update wrote them, and sends them again. That is what it would send in a step without
look-ahead. A lookup of other ids than were exchanged cannot be done by one rank alone: it ends the run.

**In one order.** Each thread has a process group of its own, in which its collectives begin in one order on
every rank: the main thread's by step, the lookup thread's by batch. The main thread waits for the lookup
thread and never the reverse: step i for the lookups of batch i. These were handed to the thread of each
rank at the latest when it began step i - 1. So whatever waits, waits for a smaller i or for an earlier
operation of the same i, and the first of all that are not done waits for nothing.

**Ends.** Where a step raises, its rank ends the second group: the exchanges that wait in it raise on every
rank, and no thread survives. A lookup that raises, raises in its step; the thread does no further one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import nn

from dpexp.config.errors import ConfigError
from dpexp.data.batch import Batch
from dpexp.distributed.process_group import ProcessGroup
from dpexp.strategies.hybrid.exchanged_lookups import (
    ExchangedLookup,
    exchange,
    exchange_again,
    exchange_gradients,
)
from dpexp.strategies.hybrid.look_ahead import AheadStep, LookAhead, Reads
from dpexp.strategies.hybrid.lookups import Gradients, Lookup, named_arguments
from dpexp.strategies.hybrid.sharded_embedding import ShardedEmbedding
from dpexp.strategies.modules.tables import PlacedTable


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
        super().__init__(hosts, device, depth)
        self._second = group.second(timeout_s)

    def _submit(self, thread: ThreadPoolExecutor, batch: Batch) -> Future[Reads]:
        self._second.open()
        return thread.submit(self._read_in_order, batch)

    def _read_in_order(self, batch: Batch) -> Reads:
        """``_read_ahead``, unless an earlier one failed: the other ranks wait for that one."""
        earlier: BaseException | None = getattr(self._thread, "error", None)  # each loop has a thread
        if earlier is not None:
            raise earlier
        try:
            return self._read_ahead(batch)
        except BaseException as error:
            self._thread.error = error
            raise

    def _read(self, table: PlacedTable, forward: Callable[..., Any], args: Any, kwargs: Any) -> Lookup:
        assert isinstance(table, ShardedEmbedding)
        return ExchangedLookup.asking(table, named_arguments(args, kwargs))

    def _complete(self, lookups: Sequence[ExchangedLookup]) -> None:
        exchange(lookups, self._second.group)

    def _read_again(self, lookups: Sequence[ExchangedLookup], stale: Sequence[torch.Tensor]) -> None:
        exchange_again(lookups, stale)

    def _gradients(self, lookups: Sequence[ExchangedLookup]) -> Gradients:
        return partial(exchange_gradients, lookups)

    def _differs(self, step: AheadStep) -> None:
        raise ConfigError(
            "--pipeline with --shard-embedding: a step looks up other ids than its batch did ahead of it, or "
            "in another order, of which the other ranks do not know: use --serial"
        )

    def _abort(self) -> None:
        self._second.abort()
