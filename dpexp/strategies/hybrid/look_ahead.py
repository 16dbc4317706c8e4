"""Look-ahead: while step i computes, a thread of its own looks up the rows of the batches after it.

i is a step and its batch. Up to ``depth`` batches after it are looked up ahead; here one:

    main thread      |again i| dense i: forward, loss, backward |update i|again i+1| dense i+1 ...
    lookup thread    |look up i+1|copy i+1|                              |look up i+2|copy i+2| ...
    gradients                                         |copy back|

    row 7, in i and i+1    read ahead ....................... written ... read again
    row 9, in i+1 only     read ahead

It computes what a serial run does, to the bit, because of four rules:

1. Updates have numbers. Before update n writes, every row of its gradients gets the number n (``written``).
2. A batch that is looked up ahead has the number of the last update that had ended when that began.
3. In its own step, after all earlier updates, its rows with a larger number are read again, and no others:
   all those that were read before, or while, an update wrote them. A sparse update writes no other rows.
4. A lookup that was not done ahead (in the first step, or of other ids) reads the table in its step.

Copies to and from an accelerator have a stream each; see ``CopyStreams``. At most ``depth`` batches wait
with their vectors. What a lookup raises, its step raises; the thread ends with the loop over the batches.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import nn

from dpexp import tensors
from dpexp.config.errors import ConfigError
from dpexp.data.batch import Batch
from dpexp.strategies.hybrid.copy_streams import CopyStreams
from dpexp.strategies.hybrid.host_calls import AllLookedUp, HostCall, host_calls
from dpexp.strategies.hybrid.lookups import Gradients, Lookup, in_graph
from dpexp.strategies.modules.tables import PlacedTable, placed_tables
from dpexp.strategies.prefetch import Prefetch


@dataclass(eq=False)
class Reads:
    """The lookups of a batch, done when the last update that had ended had the number ``version``.

    ``rows`` are the numbers in ``LookAhead.written`` of all rows that they read, ``ready`` the end of copies.
    """

    lookups: Sequence[Lookup]
    version: int
    rows: torch.Tensor
    ready: Any


@dataclass(eq=False)
class AheadStep:
    """A batch, and the lookups that were done ahead: those that its forward has not come to yet."""

    batch: Batch
    future: Future[Reads] | None = None
    left: deque[tuple[Lookup, torch.Tensor]] = field(default_factory=deque)


class LookAhead(Prefetch):
    """The lookups of ``hosts``, modules on the host with embedding tables, for the dense part on a device.

    ``rows_ahead`` counts the rows that were read ahead, ``rows_again`` those of them read again.
    """

    def __init__(self, hosts: Sequence[nn.Module], device: torch.device, depth: int = 1) -> None:
        self.rows_ahead = self.rows_again = 0
        self._hosts, self._depth = hosts, depth
        self._copies = CopyStreams(device)
        self._calls: list[HostCall] | None = None
        self._step: AheadStep | None = None
        self._waiting = deque[AheadStep]()  # the batches after the current one
        self._ended = 0  # the number of the last update that has ended
        self._thread = threading.local()
        self._first: dict[torch.Tensor, int] = {}  # the number of each table's first row in written
        rows = 0
        for table in dict.fromkeys(each for host in hosts for each in placed_tables(host)):
            vars(table)["forward"] = partial(self._look_up, table, table.forward)
            if table.weight not in self._first:
                self._first[table.weight] = rows
                rows += len(table.weight)
        self._written = torch.zeros(rows, dtype=torch.int32)  # by row, the last update that wrote it
        self._weight_versions = self._versions()

    def ahead(self, batches: Iterable[Batch]) -> Generator[Batch]:
        source = _without_draws(iter(batches))
        thread = ThreadPoolExecutor(1, "dpexp look-ahead")
        try:
            self._waiting = waiting = deque(map(AheadStep, islice(source, 1)))
            while waiting:
                step = waiting.popleft()
                waiting.extend(map(AheadStep, islice(source, self._depth - len(waiting))))
                for each in waiting if self._calls is not None else ():
                    each.future = each.future or self._submit(thread, each.batch)
                with nullcontext() if self._calls is not None else self._learning(step.batch):
                    self._step = step
                    yield step.batch
                    self._step = None
        finally:
            is_unused = any(each and each.future for each in (self._step, *self._waiting))
            self._step, self._waiting = None, deque()
            thread.shutdown(wait=False, cancel_futures=True)
            if is_unused:
                self._abort()
            thread.shutdown(wait=True)

    @contextmanager
    def writing(self) -> Iterator[None]:
        self._mark_writes_of_others()
        # reads that have not begun yet begin after the update
        is_needed = any(step.future is not None for step in self._waiting)
        for weight, first in self._first.items() if is_needed else ():
            gradient = weight.grad
            if gradient is not None and gradient.is_sparse:
                self._written.index_fill_(0, gradient._indices()[0] + first, self._ended + 1)
            elif gradient is not None:
                self._written[first : first + len(weight)] = self._ended + 1
        yield
        self._weight_versions = self._versions()
        self._ended += 1

    @contextmanager
    def _learning(self, batch: Batch) -> Iterator[None]:
        """Learn from a forward which inputs of a batch the hosts get, and how often they look up."""
        with host_calls(self._hosts, batch.inputs) as calls:
            yield
        self._calls = calls or None

    def _read_ahead(self, batch: Batch) -> Reads:
        """Look up a batch, in the lookup thread."""
        version = self._ended
        self._thread.lookups = lookups = list[Lookup]()
        inputs = list(tensors.walk(batch.inputs))
        for call in self._calls or ():
            self._thread.last = len(lookups) + call.lookups
            with suppress(AllLookedUp):
                call.run(inputs)
        self._complete(lookups)
        rows = torch.cat([each.rows + self._first[each.table.weight] for each in lookups])
        moved, ready = self._copies.to_device([each.vectors for each in lookups])
        for each, vectors in zip(lookups, moved, strict=True):
            each.vectors = vectors
        return Reads(lookups, version, rows, ready)

    def _submit(self, thread: ThreadPoolExecutor, batch: Batch) -> Future[Reads]:
        return thread.submit(self._read_ahead, batch)

    def _read(self, table: PlacedTable, forward: Callable[..., Any], args: Any, kwargs: Any) -> Lookup:
        return Lookup.of(table, args, kwargs, forward(*args, **kwargs))

    def _look_up(self, table: PlacedTable, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The forward of a table, in both threads."""
        ahead: list[Lookup] | None = getattr(self._thread, "lookups", None)
        if ahead is not None:
            ahead.append(self._read(table, forward, args, kwargs))
            if len(ahead) == self._thread.last:
                raise AllLookedUp
            return ahead[-1].vectors
        step = self._step
        if step is None:
            return forward(*args, **kwargs)
        if step.future is not None:
            self._receive(step, step.future.result())
        if step.left:
            lookup, vectors = step.left.popleft()
            if lookup.is_of(table, args, kwargs):
                return vectors
            self._differs(step)
        return forward(*args, **kwargs)

    def _receive(self, step: AheadStep, reads: Reads) -> None:
        """Read again what was written since, and let the forward have the vectors."""
        step.future = None
        self._mark_writes_of_others()
        self._copies.wait([each.vectors for each in reads.lookups], reads.ready)
        stale = self._written.index_select(0, reads.rows) > reads.version
        self.rows_ahead += len(stale)
        self.rows_again += int(stale.sum())
        counts = [len(each.rows) for each in reads.lookups]
        self._read_again(reads.lookups, torch.split(stale, counts))
        vectors = in_graph(reads.lookups, self._copies, self._gradients(reads.lookups))
        step.left.extend(zip(reads.lookups, vectors, strict=True))

    def _complete(self, lookups: Sequence[Any]) -> None:
        """Complete the lookups of a batch, in the lookup thread."""

    def _gradients(self, lookups: Sequence[Any]) -> Gradients:
        """What their gradients become before they are those of the tables."""
        return lambda gradients: gradients

    def _read_again(self, lookups: Sequence[Any], stale: Sequence[torch.Tensor]) -> None:
        """Read the stale ones of the rows of each lookup again."""
        for each, is_stale in zip(lookups, stale, strict=True):
            if is_stale.any():
                each.read_again(is_stale.nonzero().squeeze(1))

    def _differs(self, step: AheadStep) -> None:
        """The forward has another lookup than was done ahead."""
        step.left.clear()

    def _abort(self) -> None:
        """The loop ends early: no step will use the lookups that were begun."""

    def _versions(self) -> list[int]:
        return [weight._version for weight in self._first]

    def _mark_writes_of_others(self) -> None:
        """After somebody else than the optimizers wrote to a table, every row counts as written."""
        if self._weight_versions != (versions := self._versions()):
            self._weight_versions = versions
            self._ended += 1
            self._written.fill_(self._ended)


def _without_draws(source: Iterator[Batch]) -> Iterator[Batch]:
    """The batches. Raises ConfigError where reading one draws random numbers, which a model draws as well."""
    while True:
        before = torch.get_rng_state()
        batch = next(source, None)
        if not torch.equal(before, torch.get_rng_state()):
            raise ConfigError(
                "--pipeline reads a batch before the steps that precede it, and reading this one draws from "
                "torch's global random number generator: draw from a torch.Generator of the data, or --serial"
            )
        if batch is None:
            return
        yield batch
