"""RowChecker: sees every read and write of a row of a pipelined hybrid, and drives its threads.

A step of the main thread has four points: it begins, its dense part begins, its update is about to write, its
update has written. A lookup ahead begins, and later reads, at points that the test chooses: the lookup thread
waits until the main thread is there, and the main thread waits there until the lookup has read.

    main thread     0 ... 1 ......... 2 ........ 3 | 0 ... 1
    lookup thread         |begin            |read
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from dpexp.data.batch import Batch
from dpexp.strategies.hybrid.look_ahead import LookAhead
from dpexp.strategies.hybrid.lookups import Lookup
from dpexp.strategies.modules.tables import tables
from dpexp.training.trainer import Trainer

POINTS = 4
FIRST = 2  # the first step learns which lookups there are, and the second had begun before
PATIENCE_S = 120.0


@dataclass
class RowChecker:
    """``schedule`` has, for each batch from ``FIRST`` on, the points at which it begins and reads."""

    trainer: Trainer
    batches: Sequence[Batch]
    schedule: Sequence[tuple[int, int]] | None = None
    events: list[tuple[str, int, torch.Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        found = self.trainer.placed.prefetch
        assert isinstance(found, LookAhead)
        self.look_ahead, self.depth = found, found._depth
        (self.weight,) = self.look_ahead._first
        self.expected = self.weight.detach().clone()  # after the last update
        self._at = threading.Condition()
        self._point, self._batch, self._step = -1, FIRST, 0
        self._has_read: set[int] = set()

    def train(self) -> list[float]:
        """Train on the batches; returns the losses."""
        losses = []
        with self._watching(), closing(self.look_ahead.ahead(self.batches)) as steps:
            for self._step, batch in enumerate(steps):
                self._reach(0)
                losses.append(self.trainer.step(batch).item())
                self._add("ended", self._step, self._rows_written)
        return losses

    def check(self) -> None:
        """Assert the rules of the schedule, from what was read and written."""
        written, ended, began = dict[int, int](), dict[int, int](), dict[int, int]()
        read: dict[tuple[int, int], int] = {}
        used = -1
        for time, (kind, batch, rows) in enumerate(self.events):
            for row in rows.tolist():
                if kind == "written":
                    written[row] = time
                elif kind == "ended":
                    ended[row] = time
                elif kind in ("read", "again"):
                    if kind == "again":
                        assert ended[row] > began[batch], f"row {row} of {batch} is read again in vain"
                    read[batch, row] = time
                elif kind == "used":
                    assert read[batch, row] > written.get(row, -1), f"row {row} of step {batch} is stale"
            if kind == "begin":
                began[batch] = time
                assert batch - used <= self.depth + 1, f"{batch} is looked up in step {used}"
            used = batch if kind == "used" else used

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Hooks on the table, the dense part and the optimizers."""
        read_ahead, read_rows = self.look_ahead._read_ahead, Lookup._rows
        model = self.trainer.placed.module
        table = next(table for host in self.look_ahead._hosts for table in tables(host))

        def begin(batch: Batch) -> Any:
            self._wait(0)
            self._add("begin", self._batch, batch.inputs[0])
            found = read_ahead(batch)
            with self._at:
                self._has_read.add(self._batch)
                self._batch += 1
                self._at.notify_all()
            return found

        def read(module: Any, args: Any) -> None:
            is_ahead = threading.current_thread() is not threading.main_thread()
            if is_ahead:
                self._wait(1)
            # a read while an update writes is logged before its end, and so counts as stale
            self._add("read", self._batch if is_ahead else self._step, args[0])

        def read_again(lookup: Lookup, stale: torch.Tensor) -> Any:
            self._add("again", self._step, lookup.ids.reshape(-1)[stale])
            return read_rows(lookup, stale)

        def use(module: Any, args: Any) -> None:
            ids = self.batches[self._step].inputs[0]
            self._add("used", self._step, ids)
            assert torch.equal(args[0], self.expected[ids]), f"step {self._step} uses stale rows"
            self._reach(1)

        def write(*_: Any) -> None:
            self._reach(2)

        def wrote(*_: Any) -> None:
            gradient = self.weight.grad
            assert gradient is not None
            self._rows_written = gradient._indices()[0]
            self._add("written", self._step, self._rows_written)
            self.expected = self.weight.detach().clone()
            self._reach(3)

        self.look_ahead._read_ahead = begin  # type: ignore[method-assign]
        Lookup._rows = read_again  # type: ignore[method-assign]
        optimizers = self.trainer.optimizers
        assert optimizers is not None
        hooks = [
            table.register_forward_pre_hook(read),
            model.get_submodule("linear").module.register_forward_pre_hook(use),
            optimizers.members[-1].register_step_pre_hook(write),
            optimizers.members[-1].register_step_post_hook(wrote),
        ]
        try:
            yield
        finally:
            Lookup._rows = read_rows  # type: ignore[method-assign]
            for hook in hooks:
                hook.remove()

    def _add(self, kind: str, batch: int, rows: torch.Tensor) -> None:
        with self._at:
            self.events.append((kind, batch, rows.unique()))

    def _reach(self, point: int) -> None:
        """The main thread is at a point of its step; it waits for the lookups that are to read before."""
        if self.schedule is None:
            return
        with self._at:
            self._point = now = POINTS * self._step + point
            self._at.notify_all()
            last = min(self._step + self.depth, len(self.batches) - 1) if self._step else 0
            due = {j for j in range(FIRST, last + 1) if self.schedule[j - FIRST][1] <= now}
            assert self._at.wait_for(lambda: due <= self._has_read, PATIENCE_S)

    def _wait(self, which: int) -> None:
        """The lookup thread waits for the point at which it begins (0) or reads (1)."""
        if self.schedule is not None:
            point = self.schedule[self._batch - FIRST][which]
            with self._at:
                assert self._at.wait_for(lambda: self._point >= point, PATIENCE_S)


def schedule(offsets: Sequence[tuple[int, int]], depth: int) -> list[tuple[int, int]]:
    """Points at which batches begin and read, from offsets to the earliest; in the order of the batches."""
    points, before = [], 0
    for batch, (begin, more) in enumerate(offsets, FIRST):
        earliest, latest = max(before, POINTS * max(1, batch - depth)), POINTS * batch
        started = min(earliest + begin, latest)
        before = min(started + more, latest)
        points.append((started, before))
    return points
